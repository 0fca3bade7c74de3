"""Which rollouts of a teacher are learned from."""

from typing import Any

from proxy_addons.identity import Rollout
from tasks.teaching import choose


def row(task: str, sample: int, reward: float | None = 1.0, **values: Any) -> dict[str, Any]:
    rollout = Rollout("r", 0, task, sample, values.get("try", 0))
    return {
        "rollout": rollout.id,
        "run": "r",
        "kind": "teach",
        "epoch": 0,
        "task": task,
        "sample": sample,
        "try": 0,
        "harness": "codex",
        "reward": reward,
        "error_class": None,
        "complete": True,
    } | values


def texts(**said: str) -> Any:
    return lambda row: said[f"{row['task']}{row['sample']}"]


def test_the_best_of_each_task_and_harness_are_kept() -> None:
    rows = [
        row("a", 0, 0.5),
        row("a", 1),
        row("a", 2),
        row("a", 3, harness="claude_code"),
        row("b", 0, 0.2),
        row("b", 1, None, error_class="VerifierError"),
        row("b", 2, complete=False),
    ]
    said = texts(a0="one way to do it", a1="another that is quite unlike", a2="third", a3="0123456789")
    kept, dropped = choose(rows, said, min_reward=0.5, keep=1, alike=0.9)
    assert [(r["task"], r["sample"]) for r in kept] == [("a", 1), ("a", 3)]
    assert dropped == {"enough": 2, "failed": 1, "not_scored": 2}


def test_of_what_is_alike_one_is_kept_whatever_the_task() -> None:
    rows = [row("a", 0), row("a", 1), row("b", 0), row("b", 1)]
    said = texts(
        a0="cat notes.txt " * 9, a1="cat notes.txt " * 9 + "!", b0="CAT notes.txt " * 9, b1="sed -n 7p data.csv"
    )
    kept, dropped = choose(rows, said, min_reward=1.0, keep=2, alike=0.8)
    assert ([(r["task"], r["sample"]) for r in kept], dropped) == ([("a", 0), ("b", 1)], {"alike": 2})


def test_the_last_try_counts() -> None:
    rows = [row("a", 0, None, error_class="InfrastructureError"), row("a", 0, **{"try": 1})]
    kept, _ = choose(rows, texts(a0="x"), min_reward=1.0, keep=1, alike=0.9)
    assert [r["try"] for r in kept] == [1]
