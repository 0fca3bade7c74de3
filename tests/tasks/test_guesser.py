"""The floor is what running the real verifiers on every possible guess gives."""

import json
import os
import random
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

from proxy_addons.conversation import Message
from tasks import builtin
from tasks import taskset
from tasks.guesser import FLOOR
from tasks.guesser import guesser_turn
from tasks.teacher import DONE
from tests.tasks.test_teacher import BASH


class Given(random.Random):
    """Draws the word that it was given."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def choice(self, seq: object) -> str:  # type: ignore[override]
        return self.word


def test_the_floor_is_what_every_guess_comes_to(tmp_path: Path) -> None:
    builtin.generate(tmp_path / "set", seed=3, train=0, heldout=6)
    for task in taskset.load(tmp_path / "set"):
        rewards = []
        for word in builtin.VALUES:
            workspace = Path(shutil.copytree(task.environment, tmp_path / "work" / task.id / word))
            (call,) = guesser_turn([Message("user", task.instruction)], BASH, Given(word)).tool_calls
            subprocess.run(["sh", "-c", json.loads(call.arguments)["command"]], cwd=workspace, check=True, timeout=10)
            reward = tmp_path / "reward"
            env = {"PATH": os.environ["PATH"], "VERIFIER_REWARD_FILE": str(reward)}
            subprocess.run(["sh", str(task.tests / "test.sh")], cwd=workspace, env=env, timeout=10, capture_output=True)
            rewards.append(int(reward.read_text()))
        assert Fraction(sum(rewards), len(rewards)) == FLOOR[task.kind], task.kind


def test_every_word_is_drawn_alike() -> None:
    rng = random.Random(0)
    turns = [guesser_turn([Message("user", "Run it.")], BASH, rng) for _ in range(4000)]
    drawn = [json.loads(turn.tool_calls[0].arguments)["command"].split()[1] for turn in turns]
    counts = [drawn.count(word) for word in builtin.VALUES]
    assert sum(counts) == 4000
    assert min(counts) > 140 and max(counts) < 260


def test_after_its_guess_it_ends() -> None:
    assert guesser_turn([Message("user", "Run it."), Message("tool", "no")], BASH).content == DONE


def test_every_kind_has_a_floor() -> None:
    assert FLOOR.keys() == builtin.KINDS.keys()
