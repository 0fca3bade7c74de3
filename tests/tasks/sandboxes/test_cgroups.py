"""Both layouts of control groups are read."""

from pathlib import Path

import pytest

from tasks.sandboxes import cgroups


def test_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    for name, file, text in (
        ("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("cpuacct", "cpuacct.usage", "1500000000\n"),
    ):
        (tmp_path / name / "openforge/x").mkdir(parents=True)
        (tmp_path / name / "openforge/x" / file).write_text(text)
    (tmp_path / "memory/cgroup.procs").touch()
    assert cgroups.available() == {"memory"}
    assert cgroups.writable() and not cgroups.swap_limit()
    assert (cgroups.cpu_s("/openforge/x"), cgroups.oom_kills("/openforge/x")) == (1.5, 2)


def test_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    group = tmp_path / "openforge/x"
    group.mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 1\n")
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    assert cgroups.available() == {"memory", "cpu", "pids"}
    assert cgroups.writable() and cgroups.swap_limit()
    assert (cgroups.cpu_s("/openforge/x"), cgroups.oom_kills("/openforge/x")) == (2.5, 1)


def test_nothing_there_is_not_zero_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    assert (cgroups.cpu_s("/gone"), cgroups.oom_kills("/gone")) == (None, 0)
    assert not cgroups.writable()
