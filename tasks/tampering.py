"""Files by which a workspace sways the test that scores it, merely by lying there.

Interpreters and test runners read more than they are told to: a `conftest.py`, a section of `pyproject.toml`, a
`json.py` before the standard library's, a byte code file, git's hooks. For all of these the task's own version counts,
or none. Ordinary files, the answer among them, are never touched.
"""

import configparser
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_NAMES = {
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"),
    *("sitecustomize.py", "usercustomize.py"),
}
_SETTINGS = {"pyproject.toml", "setup.cfg", "tox.ini"}
# `test` is a package of the standard library that nobody imports, and a common name for a folder.
_IMPORTED = (sys.stdlib_module_names | {"pytest", "_pytest", "pluggy", "iniconfig", "xdist"}) - {"test", "this"}
_UNCHECKED = 1
_GIT_RUNS = re.compile(rb"(?i)\b(fsmonitor|hookspath|sshcommand|pager|editor|external|textconv|filter|alias|include)")


def is_cache(relative: Path) -> bool:
    """Whether it is byte code that an interpreter wrote and will write again."""
    return relative.suffix == ".pyc" and relative.parent.name == "__pycache__"


def is_forged_cache(source: Path) -> bool:
    """Whether a byte code file is of the kind that is run without a look at its source (PEP 552)."""
    with source.open("rb") as file:
        return int.from_bytes(file.read(8)[4:], "little") == _UNCHECKED


def sways_by_name(relative: Path, workspace: Path, instruction: str) -> bool:
    """Whether a file or link of this name sways a test. A file that the instruction names is the agent's to write."""
    name, top = relative.name, relative.parts[0]
    if name in instruction:
        return False
    if name in _NAMES or relative.suffix in (".pth", ".pyc"):
        return True
    if ".git" in relative.parts:
        return relative.parent.name == "hooks" and "hook" not in instruction.lower() and not name.endswith(".sample")
    module = top.split(".")[0]
    if module not in _IMPORTED:
        return False
    if len(relative.parts) == 1:
        return relative.suffix in (".py", ".so")
    return (workspace / top / "__init__.py").is_file()  # without it, the standard library's module comes first


def sways(relative: Path, source: Path, original: Path) -> bool:
    """Whether what a file holds sways a test, and the task's own does not hold the same."""
    if relative.name in _SETTINGS:
        return _pytest_settings(source) != _pytest_settings(original)
    if relative.name == "entry_points.txt" and relative.parent.suffix in (".dist-info", ".egg-info"):
        return b"pytest11" in source.read_bytes()
    if relative.name == "config" and relative.parent.name == ".git":
        return bool(_GIT_RUNS.search(source.read_bytes())) and _bytes(source) != _bytes(original)
    return False


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _pytest_settings(file: Path) -> Any:
    """What pytest reads of a settings file; its whole text where that cannot be told."""
    text = _bytes(file).decode(errors="replace")
    try:
        if file.suffix == ".toml":
            return tomllib.loads(text).get("tool", {}).get("pytest", {})
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        return {name: dict(parser[name]) for name in ("pytest", "tool:pytest") if name in parser}
    except (tomllib.TOMLDecodeError, configparser.Error, AttributeError):
        return text if "pytest" in text else {}
