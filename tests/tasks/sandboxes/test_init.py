"""Backends are found by name, and a missing one is told with its remedy."""

import pytest

from proxy_addons.errors import ConfigError
from tasks.sandboxes import bubblewrap
from tasks.sandboxes import choose
from tasks.sandboxes import runc


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"sandbox 'podman': use one of auto, runc, bubblewrap"):
        choose("podman")


def test_auto_needs_root_for_runc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runc, "missing", lambda: None)
    monkeypatch.setattr(bubblewrap, "missing", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert choose().name == "runc"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert choose().name == "bubblewrap"


def test_runc_inside_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: program)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"sandbox 'runc': control groups cannot be made here"):
        choose("runc")


@pytest.mark.parametrize(("name", "package"), [("runc", "runc"), ("bubblewrap", "bubblewrap")])
def test_missing_program_names_its_package(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: program if program.startswith("/") else None)
    with pytest.raises(ConfigError, match=f"apt install {package}"):
        choose(name)


def test_missing_python_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: None)
    with pytest.raises(ConfigError, match="apt install python3"):
        choose("runc")
