"""O60: a batch in which every group is all right or all wrong is a skipped step with counts, not a NaN or a hang."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.calls import Recording
from tests.support.epochs import record
from tests.support.epochs import train
from tests.support.policy import make_learner
from tests.support.policy import save_policy
from training.advantages import group_advantages
from training.rows import Row

pytestmark = pytest.mark.timeout(400)


def groups(*rewards: list[float]) -> list[dict[str, Any]]:
    return [Recording(n, f"t{g}").ended(r) for g, group in enumerate(rewards) for n, r in enumerate(group)]


def test_o60_groups_without_a_difference_are_dropped() -> None:
    rollouts = groups([1.0] * 4, [0.0] * 4)
    advantages, report = group_advantages(rollouts, {r["rollout"] for r in rollouts})
    assert advantages == {}
    assert (report.groups, report.kept, report.dropped) == (2, 0, {"same_reward": 2})


@pytest.mark.slow
def test_o60_the_step_is_skipped_and_the_next_one_trains(tmp_path: Path) -> None:
    base = save_policy(tmp_path / "base")
    before = tmp_path / "ck" / "epoch-0001"
    before.mkdir(parents=True)
    (before / "state.json").write_text('{"epoch": 1}')
    skipped = train(tmp_path, record(tmp_path, base, 2, [1.0, 1.0]), tmp_path / "ck", str(before))
    assert (skipped["skipped"], skipped["rows"], skipped["trained_tokens"]) == (True, 0, 0)
    assert skipped["groups"]["dropped"] == {"same_reward": 1}
    assert (skipped["checkpoint"], skipped["hf_path"]) == (str(before), None)
    assert skipped["alarms"] == ["nothing to train: the step was skipped"]
    assert not (tmp_path / "ck" / "epoch-0002").exists()
    trained = train(tmp_path, record(tmp_path, base, 3, [1.0, 0.0]), tmp_path / "ck", None)
    assert (trained["skipped"], trained["checkpoint"]) == (False, str(tmp_path / "ck" / "epoch-0003"))


def test_o60_three_rows_for_two_parts(tmp_path: Path) -> None:
    learner = make_learner(save_policy(tmp_path / "base"), mini_batches=2)
    rows = [Row(f"r{n}", f"g{n}", [1, 2 + n], [0, 1], [0.0, -4.0], (0,), (0,)) for n in range(3)]
    numbers = learner.update(rows, {"r0": 1.0, "r1": -1.0, "r2": 0.5}, seed=0, step=0)
    assert (numbers["optimizer_steps"], numbers["refused_steps"]) == (2, 0)
