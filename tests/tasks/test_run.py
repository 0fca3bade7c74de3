import json
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks.run import held
from tasks.run import keep_best
from tasks.run import model_folder
from tasks.run import open_run
from tasks.statistics import rate

CONFIG = {"seed": 0, "model": "tiny", "epochs": 2}


def test_a_run_is_taken_up_again_and_may_go_on_for_longer(tmp_path: Path) -> None:
    open_run("r", str(tmp_path), CONFIG)
    assert open_run("r", str(tmp_path), CONFIG | {"epochs": 3}).config["epochs"] == 3


def test_another_configuration_under_the_same_name_is_refused(tmp_path: Path) -> None:
    open_run("r", str(tmp_path), CONFIG)
    with pytest.raises(ConfigError, match=r"exists with other settings \(seed was 0, now 1\)"):
        open_run("r", str(tmp_path), CONFIG | {"seed": 1})


@pytest.mark.parametrize("text", ["", "{}", "3"])
def test_a_run_whose_configuration_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r/run.json").write_text(text)
    with pytest.raises(ConfigError, match=r"run 'r': .*run\.json cannot be read .*: choose another name"):
        open_run("r", str(tmp_path), CONFIG)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"runs_dir: .*file/r cannot be written \(Not a directory\)"):
        open_run("r", str(tmp_path / "file"), CONFIG)


def test_a_run_that_is_older_than_a_field_is_taken_up(tmp_path: Path) -> None:
    open_run("r", str(tmp_path), CONFIG | {"training": {"clip": 0.2}})
    open_run("r", str(tmp_path), CONFIG | {"training": {"clip": 0.2, "newer": 1}})
    with pytest.raises(ConfigError, match="training was"):
        open_run("r", str(tmp_path), CONFIG | {"training": {"clip": 0.3, "newer": 1}})


def test_a_run_is_one_process_at_a_time(tmp_path: Path) -> None:
    run = open_run("r", str(tmp_path), CONFIG)
    with held(run), pytest.raises(ConfigError, match="under way in another process"), held(run):
        pass
    with held(run):
        pass


def test_an_epoch_that_trained_nothing_leaves_the_weights_of_the_one_before(tmp_path: Path) -> None:
    run = open_run("r", str(tmp_path), CONFIG)
    for epoch, path in ((1, '"/weights/1"'), (2, "null")):
        run.epoch(epoch).mkdir()
        (run.epoch(epoch) / "train.json").write_text(f'{{"hf_path": {path}}}')
    assert run.weights(2, tmp_path) == (Path("/weights/1"), 1)
    assert run.weights(0, tmp_path) == (tmp_path, 0)


def test_a_missing_model_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        model_folder(str(tmp_path))


def test_a_missing_smollm2_names_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.run.ROOT", tmp_path)
    with pytest.raises(ConfigError, match="run `make model-smollm2`"):
        model_folder("smollm2")


def test_the_best_checkpoint_is_named_and_a_later_equal_does_not_replace_it(tmp_path: Path) -> None:
    run = open_run("r", str(tmp_path), CONFIG)
    checkpoints = run.path / "checkpoints"
    checkpoints.mkdir()
    for epoch in (1, 2, 3):
        run.epoch(epoch).mkdir()
        found = {"hf_path": f"/x/epoch-000{epoch}/hf", "checkpoint": f"/x/epoch-000{epoch}"}
        (run.epoch(epoch) / "train.json").write_text(json.dumps(found))
    keep_best(run, 0, rate([True, True]))
    keep_best(run, 1, rate([]))
    assert not list(checkpoints.iterdir())
    for epoch, outcomes in ((1, [True, False]), (2, [True, False]), (3, [False, False])):
        keep_best(run, epoch, rate(outcomes))
    assert json.loads((checkpoints / "best.json").read_text())["checkpoint"] == "epoch-0001"
    keep_best(run, 3, rate([True, True]))
    assert json.loads((checkpoints / "best.json").read_text())["epoch"] == 3
