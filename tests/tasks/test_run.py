from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks.run import held
from tasks.run import model_folder
from tasks.run import open_run

CONFIG = {"seed": 0, "model": "tiny", "epochs": 2}


def test_a_run_is_taken_up_again_and_may_go_on_for_longer(tmp_path: Path) -> None:
    open_run("r", str(tmp_path), CONFIG)
    assert open_run("r", str(tmp_path), CONFIG | {"epochs": 3}).config["epochs"] == 3


def test_another_configuration_under_the_same_name_is_refused(tmp_path: Path) -> None:
    open_run("r", str(tmp_path), CONFIG)
    with pytest.raises(ConfigError, match=r"exists with other settings \(seed was 0, now 1\)"):
        open_run("r", str(tmp_path), CONFIG | {"seed": 1})


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
