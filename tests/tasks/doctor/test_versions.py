import pytest

from tasks import harnesses
from tasks.doctor.versions import PYTHON_PACKAGES
from tasks.doctor.versions import judge
from tasks.doctor.versions import version_command
from tasks.doctor.versions import wanted
from tasks.run import ROOT


@pytest.mark.parametrize("name", harnesses.NAMES)
def test_every_harness_is_pinned_and_can_be_asked(name: str) -> None:
    assert name in wanted(ROOT)
    program, *rest = version_command(name)
    assert program.startswith("/opt/")
    if name in PYTHON_PACKAGES:
        assert rest[0] == "-c" and PYTHON_PACKAGES[name] in rest[1]
    else:
        assert rest[-1] == "--version" and not any(part.startswith("-") for part in rest[:-1])


@pytest.mark.parametrize(
    ("said", "ok"),
    [
        ("2.1.328 (Claude Code)\n", True),
        ("codex-cli 2.1.328\n", True),
        ("(2.1.328)", False),
        ("2.1.3280", False),
        ("sh: /opt/claude-code/claude: not found", False),
        ("", False),
    ],
)
def test_judge(said: str, ok: bool) -> None:
    assert judge(said, "2.1.328")[0] is ok


def test_what_is_not_pinned_is_only_told() -> None:
    assert judge("7.0", None) == (True, "7.0; deploy/harnesses pins no version of it")
