"""Imports between the rooms point one way: bench → flows → tasks → training → proxy_addons."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
ROOMS = ("bench", "flows", "tasks", "training", "proxy_addons")
"""Each may import itself and what stands after it."""

HEAVY = {"torch", "verl", "prefect", "ray", "kubernetes"}
"""What the proxy's slim image has not got."""

FILES = sorted(file for room in ROOMS for file in (REPO / room).rglob("*.py"))


def imported(source: str) -> set[str]:
    """Top-level names that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def against_the_arrows(room: str, source: str) -> set[str]:
    """The imports of a module of `room` that it must not have."""
    forbidden = set(ROOMS[: ROOMS.index(room)]) | {"tests"}
    if room == "proxy_addons":
        forbidden |= HEAVY
    return imported(source) & forbidden


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(REPO)))
def test_no_import_against_the_arrows(file: Path) -> None:
    assert against_the_arrows(file.relative_to(REPO).parts[0], file.read_text()) == set()


@pytest.mark.parametrize(
    ("room", "source", "found"),
    [
        ("proxy_addons", "import torch.nn as nn", {"torch"}),
        ("proxy_addons", "def f():\n    from verl.workers import x", {"verl"}),
        ("training", "from tasks.rollout import fill", {"tasks"}),
        ("tasks", "import flows.train", {"flows"}),
        ("flows", "import tests.support", {"tests"}),
        ("flows", "import prefect, tasks, training, proxy_addons", set()),
    ],
)
def test_the_check_finds_what_it_looks_for(room: str, source: str, found: set[str]) -> None:
    assert against_the_arrows(room, source) == found


def test_what_only_steers_starts_without_torch() -> None:
    """To import it takes longer than all else that a flow imports."""
    code = "import sys, flows.train, tasks.doctor.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPO).returncode == 0


def test_every_room_is_looked_at() -> None:
    assert {file.relative_to(REPO).parts[0] for file in FILES} == set(ROOMS)
