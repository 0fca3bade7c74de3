"""O52: a missing reward is no reward: out of the loss and out of the baseline, and nothing becomes NaN."""

import json
import math
from pathlib import Path

import pytest

from tasks.verify import verify
from tests.support.calls import Recording
from tests.tasks.boxes import here
from training.advantages import group_advantages

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("missing", [None, math.nan])
def test_o52_the_baseline_is_over_the_scored(missing: float | None) -> None:
    rollouts = [Recording(n).ended(reward) for n, reward in enumerate([1.0, missing, 0.0, 1.0])]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    scored = [rollouts[n]["rollout"] for n in (0, 2, 3)]
    # mean 2/3, sample std 0.57735
    assert advantages == pytest.approx(dict(zip(scored, [0.57735, -1.1547, 0.57735], strict=True)), abs=1e-4)
    assert report.reward_mean == pytest.approx(2 / 3)
    assert (report.excluded, report.sizes) == ({"no_reward": 1}, {"r-e001-t": (3, 4)})


def test_o52_a_group_without_any_verdict_is_dropped_and_counted() -> None:
    rollouts = [Recording(n).ended(None) for n in range(4)]
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    assert advantages == {}
    assert (report.dropped, report.reward_mean) == ({"no_voter": 1}, None)


@pytest.mark.parametrize("part", [None, math.nan])
async def test_o52_one_of_two_parts_is_missing(part: float | None, tmp_path: Path) -> None:
    for name in ("task/tests", "task/environment", "workspace"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "task/task.toml").write_text("[metadata.reward]\nweights = {reward = 1.0, style = 1.0}\n")
    written = json.dumps({"reward": 1, "style": part})
    (tmp_path / "task/tests/test.sh").write_text(f"echo '{written}' > /logs/verifier/reward.json")
    verdict = await verify(tmp_path / "task", tmp_path / "workspace", 15, here("bubblewrap"))
    assert (verdict.reward, verdict.error_class) == (None, "VerifierError")
    assert verdict.reason.startswith("style is")
