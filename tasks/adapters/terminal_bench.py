"""terminal-bench in its older format, a `task.yaml` a folder (github.com/laude-institute/terminal-bench).

Its successor's tasks are Harbor folders and need no adapter. A folder has `task.yaml` (instruction, timeouts, parser),
`run-tests.sh` and `tests/` (put into the container afterwards, run in its working directory with TEST_DIR=/tests),
`solution.sh`, and `Dockerfile` with `docker-compose.yaml` (the container `client`, maybe others).
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic import Field
from pydantic import field_validator

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import Item
from tasks.adapters import Need
from tasks.adapters import Problems
from tasks.adapters import read_yaml
from tasks.adapters import task_id
from tasks.adapters import unique
from tasks.adapters import write_harbor

NAME = "terminal_bench"
ABOUT = "tasks in a terminal, in the older task.yaml format"
GIVE = "a folder of folders with a task.yaml each (tasks/ of its repository)"

PASSED = frozenset({"PASSED", "XFAIL", "SKIPPED"})
"""What its pytest parser counts as passed."""
_NOT_WORKSPACE = (
    "task.yaml",
    "tests",
    "run-tests.sh",
    "solution.*",
    "Dockerfile*",
    "docker-compose.y*ml",
    ".dockerignore",
)
_FETCHES = re.compile(r"\b(?:curl|wget|apt-get|apt|pip3?|uv|npm|git clone)\b")
_PLAIN = re.compile(r"\s*(?:#.*|FROM\b.*|WORKDIR\b.*|(?:COPY|ADD)\s+\.\s.*|)", re.I)


class Sheet(BaseModel):
    """A task.yaml, and which folder it is in."""

    name: str
    instruction: str = Field(min_length=1)
    category: str = "software_engineering"
    parser_name: str = "pytest"
    max_agent_timeout_sec: float = Field(default=360.0, gt=0)
    max_test_timeout_sec: float = Field(default=60.0, gt=0)
    run_tests_in_same_shell: bool = False

    @field_validator("instruction")
    @classmethod
    def _strip(cls, text: str) -> str:
        return text.strip()


def read(folder: Path) -> list[Item]:
    """Its tasks. Raises ConfigError."""
    files = sorted(folder.glob("*/task.yaml"))
    problems, items = Problems(), []
    for file in files:
        sheet = problems.parse_yaml(file, Sheet, "name")
        if sheet is not None:
            items.append(_item(sheet, file.parent))
    problems.raise_any(len(items), folder, f"*/task.yaml; give {GIVE}")
    return unique(items)


def _item(sheet: Sheet, folder: Path) -> Item:
    needs = []
    if sheet.parser_name != "pytest":
        needs.append(Need("parser", sheet.parser_name, "only pytest's results are read here"))
    if sheet.run_tests_in_same_shell:
        needs.append(Need("shell", "", "its tests want the agent's own shell, and a verifier runs in another sandbox"))
    if not (folder / "run-tests.sh").is_file():
        needs.append(Need("file", "run-tests.sh", "it is not in the task's folder"))
    others = _services(folder) - {"client"}
    if (folder / "run-tests.sh").is_file() and _FETCHES.search((folder / "run-tests.sh").read_text()):
        needs.append(Need("network", "for its tests", "run-tests.sh downloads, and a verifier has no network"))
    needs += [Need("container", name, "a second container beside the agent's; not here") for name in sorted(others)]
    if not _plain(folder / "Dockerfile"):
        needs.append(
            Need("image", sheet.name, "its Dockerfile installs things; build it and make Harbor folders of the set")
        )
    return Item(task_id(sheet.name), sheet.instruction, sheet.category, tuple(needs), sheet)


def _services(folder: Path) -> set[str]:
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / name).is_file():
            try:
                data: Any = read_yaml((folder / name).read_text())
                return set(data["services"])
            except (yaml.YAMLError, KeyError, TypeError):
                raise ConfigError(f"{folder.name}/{name}: names no services") from None
    return set()


def _plain(dockerfile: Path) -> bool:
    """Whether the image is its base and the folder's files: then a workspace with these is the same."""
    return not dockerfile.is_file() or all(_PLAIN.fullmatch(line) for line in dockerfile.read_text().splitlines())


def write(item: Item, source: Path, out: Path) -> None:
    """A Harbor folder: the reward is 1 if every test passed, by pytest's own report."""
    assert isinstance(item.record, Sheet)
    sheet, folder = item.record, source / item.record.name
    shutil.copytree(folder, out / "environment", ignore=shutil.ignore_patterns(*_NOT_WORKSPACE))
    if (folder / "tests").is_dir():
        shutil.copytree(folder / "tests", out / "tests")
    files = {"tests/run-tests.sh": (folder / "run-tests.sh").read_text(), "tests/test.sh": _TEST}
    if (folder / "solution.sh").is_file():
        files["solution/solve.sh"] = (folder / "solution.sh").read_text()
    write_harbor(out, item, sheet.max_agent_timeout_sec, sheet.max_test_timeout_sec, files, _REWARD)


def score(statuses: Mapping[str, str]) -> float:
    """1.0 if every test passed, else 0.0, of pytest's words by test (`harness`: `is_resolved`; its pytest parser).

    PASSED, XFAIL and SKIPPED are passes. Raises VerifierError where there is no test.
    """
    if not statuses:
        raise VerifierError("no test ran")
    return float(all(status.upper() in PASSED for status in statuses.values()))


_REWARD = """
[metadata.reward]
outcome = "tests"
weights = { tests = 1.0 }
gate = 1.0
"""

_TEST = """\
#!/bin/bash
export PYTEST_ADDOPTS="--junitxml=/logs/verifier/junit.xml"
bash "$TEST_DIR/run-tests.sh"
"""
