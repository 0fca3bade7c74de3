"""O49: a verifier that crashed or wrote nonsense gives no reward; one that judged gives what it judged."""

from pathlib import Path

import pytest

from tasks.verify import verify
from tests.tasks.boxes import here

NO_VERDICT = {
    "killed with no file": "kill -9 $$",
    "exit 137 with no file": "exit 137",
    "empty file": ": > $VERIFIER_REWARD_FILE",
    "abc": "echo abc > $VERIFIER_REWARD_FILE",
    "nan": "echo nan > $VERIFIER_REWARD_FILE",
}


def folders(tmp_path: Path, test: str) -> tuple[Path, Path]:
    for name in ("task/tests", "task/environment", "workspace"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "task/tests/test.sh").write_text(test)
    return tmp_path / "task", tmp_path / "workspace"


@pytest.mark.parametrize("test", NO_VERDICT.values(), ids=NO_VERDICT.keys())
async def test_o49_no_verdict(test: str, tmp_path: Path) -> None:
    verdict = await verify(*folders(tmp_path, test), 15, here("bubblewrap"))
    assert (verdict.reward, verdict.error_class) == (None, "VerifierError")
    assert verdict.reason


@pytest.mark.parametrize(("text", "code", "reward"), [("0", 1, 0.0), ("1", 0, 1.0)])
async def test_o49_verdict(text: str, code: int, reward: float, tmp_path: Path) -> None:
    test = f"echo {text} > $VERIFIER_REWARD_FILE; exit {code}"
    verdict = await verify(*folders(tmp_path, test), 15, here("bubblewrap"))
    assert (verdict.reward, verdict.error_class) == (reward, None)
