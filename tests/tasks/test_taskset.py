from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from proxy_addons.errors import ConfigError
from tasks import taskset

TOML = 'version = "1.0"\n[metadata]\nkind = "read"\nsplit = "heldout"\n[agent]\ntimeout_sec = 30\n'


def make(root: Path, name: str = "one-1", toml: str = TOML) -> Path:
    folder = root / name
    for sub in ("environment", "tests"):
        (folder / sub).mkdir(parents=True)
    (folder / "instruction.md").write_text("Do it.\n")
    (folder / "task.toml").write_text(toml)
    (folder / "tests/test.sh").write_text("exit 0\n")
    return folder


def test_reads_a_task(tmp_path: Path) -> None:
    make(tmp_path)
    (task,) = taskset.load(tmp_path)
    assert (task.id, task.kind, task.split, task.instruction) == ("one-1", "read", "heldout", "Do it.")
    assert (task.agent_timeout_s, task.verifier_timeout_s) == (30.0, 600.0)
    with pytest.raises(FrozenInstanceError):
        task.split = "train"  # type: ignore[misc]


def test_the_hosts_that_a_task_names(tmp_path: Path) -> None:
    make(
        tmp_path, toml='[environment]\nallow_hosts = ["Mirror.example", "*.git.example"]\nmodel_hosts = ["m.example"]\n'
    )
    (task,) = taskset.load(tmp_path)
    assert (task.allow_hosts, task.model_hosts) == (("mirror.example", "*.git.example"), ("m.example",))


@pytest.mark.parametrize("wrong", ['"a.example"', '["https://a.example"]', "[3]"])
def test_a_host_that_cannot_be_meant_is_a_problem(tmp_path: Path, wrong: str) -> None:
    make(tmp_path, toml=f"[environment]\nallow_hosts = {wrong}\n")
    with pytest.raises(ConfigError, match=r"task one-1: task\.toml: environment\.allow_hosts: "):
        taskset.load(tmp_path)


def test_a_set_made_elsewhere_needs_no_kind_and_no_split(tmp_path: Path) -> None:
    make(tmp_path, toml='version = "1.0"\n')
    (task,) = taskset.load(tmp_path)
    assert (task.kind, task.split) == ("other", "train")


def test_what_a_task_asks_of_its_container(tmp_path: Path) -> None:
    asks = '[environment]\ndocker_image = "registry.test/t:1"\nmemory_mb = 4096\ncpus = 1.5\n'
    make(tmp_path, "one", asks)
    make(tmp_path, "two", "")
    one, two = taskset.load(tmp_path)
    assert (one.image, one.memory_mb, one.cpus) == ("registry.test/t:1", 4096, 1.5)
    assert (two.image, two.memory_mb, two.cpus) == (None, None, None)
    make(tmp_path, "wrong", "[environment]\ndocker_image = 3\nmemory_mb = true\ncpus = 0\n")
    with pytest.raises(ConfigError) as found:
        taskset.load(tmp_path)
    lines = str(found.value).splitlines()
    assert [line.split(" must be ")[0] for line in lines] == [
        f"task wrong: task.toml: environment.{field}" for field in ("docker_image", "memory_mb", "cpus")
    ]


def test_files_beside_the_tasks_and_hidden_folders_are_no_tasks(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "manifest.parquet").write_text("")
    (tmp_path / ".cache").mkdir()
    assert len(taskset.load(tmp_path)) == 1


@pytest.mark.parametrize("change", ["environment/a", "tests/test.sh", "instruction.md", "task.toml"])
def test_the_digest_covers_every_file(tmp_path: Path, change: str) -> None:
    folder = make(tmp_path)
    before = taskset.digest(folder)
    with (folder / change).open("a") as file:
        file.write("\n")
    assert taskset.digest(folder) != before


def test_the_digest_does_not_know_where_the_folder_is(tmp_path: Path) -> None:
    assert taskset.digest(make(tmp_path / "a")) == taskset.digest(make(tmp_path / "b", "other"))


def test_all_problems_are_told_one_line_each(tmp_path: Path) -> None:
    make(tmp_path, "Upper")
    make(tmp_path, "bad-toml", "= 1")
    bad = make(tmp_path, "many", 'metadata = 3\n[agent]\ntimeout_sec = "soon"\n[verifier]\ntimeout_sec = 0\n')
    (bad / "instruction.md").write_text(" \n")
    (bad / "tests/test.sh").unlink()
    (bad / "environment").rmdir()
    with pytest.raises(ConfigError) as caught:
        taskset.load(tmp_path)
    lines = str(caught.value).splitlines()
    expected = ["Upper", "bad-toml", *["many"] * 6]
    assert [line.split(":")[0] for line in lines] == [f"task {name}" for name in expected]
    parts = ("instruction.md", "tests/test.sh", "environment/", "metadata", "agent.timeout_sec", "verifier.timeout_sec")
    for word in parts:
        assert any(word in line for line in lines), word


def test_an_instruction_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    (make(tmp_path) / "instruction.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"^task one-1: instruction\.md is missing, empty or not UTF-8"):
        taskset.load(tmp_path)


@pytest.mark.parametrize("name", ["", "absent"])
def test_no_tasks_is_an_error_that_names_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path / name)):
        taskset.load(tmp_path / name)


def test_harbors_own_name_for_the_hosts(tmp_path: Path) -> None:
    make(tmp_path, toml='[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["mirror.example"]\n')
    (task,) = taskset.load(tmp_path)
    assert task.allow_hosts == ("mirror.example",)


@pytest.mark.parametrize(
    ("value", "said"), [('"x"', "must be a list of texts, not 'x'"), ('["x", ""]', "no empty text")]
)
def test_what_misleads_is_texts(tmp_path: Path, value: str, said: str) -> None:
    make(tmp_path, "right", '[metadata]\nmisleading = ["last entry: 3"]\n')
    assert taskset.load(tmp_path)[0].misleading == ("last entry: 3",)
    make(tmp_path, "wrong", f"[metadata]\nmisleading = {value}\n")
    with pytest.raises(ConfigError, match=f"task wrong: task.toml: metadata.misleading: .*{said}"):
        taskset.load(tmp_path)


def test_a_task_of_several_steps_needs_no_instruction_and_no_tests_of_its_own(tmp_path: Path) -> None:
    folder = make(tmp_path, toml=f'{TOML}[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n')
    (folder / "instruction.md").unlink()
    (folder / "tests/test.sh").unlink()
    for name in ("one", "two"):
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(f"Do {name}.\n")
        (folder / "steps" / name / "tests/test.sh").write_text("exit 0\n")
    (task,) = taskset.load(tmp_path)
    assert [step.instruction for step in task.steps] == ["Do one.", "Do two."]
    assert task.instruction == "Do one.\n\nDo two."
    assert (task.step_reward, task.steps[0].agent_timeout_s) == ("mean", 30.0)


def test_a_steps_folder_that_no_task_toml_speaks_of_is_told(tmp_path: Path) -> None:
    (make(tmp_path) / "steps/one").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        taskset.load(tmp_path)
    assert str(caught.value).splitlines() == [
        "task one-1: task.toml names no step ([[steps]])",
        "task one-1: steps/one: task.toml does not name it",
    ]


def test_an_answer_to_compare_does_not_go_with_several_steps(tmp_path: Path) -> None:
    folder = make(tmp_path, toml='[metadata.reward]\noutcome = "exact"\n[[steps]]\nname = "one"\n')
    (folder / "steps/one").mkdir(parents=True)
    (folder / "steps/one/instruction.md").write_text("Do it.\n")
    with pytest.raises(ConfigError, match="outcome must be reward or tests in a task of several steps"):
        taskset.load(tmp_path)


def test_a_reward_rule_that_cannot_be_meant_is_a_problem_of_the_set(tmp_path: Path) -> None:
    make(tmp_path, toml="[metadata.reward]\noutcome = 'luck'\n")
    with pytest.raises(ConfigError, match=r"task one-1: task\.toml: metadata\.reward\.outcome: "):
        taskset.load(tmp_path)
