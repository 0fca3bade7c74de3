"""Which tasks of a benchmark may be trained on, with items made for it and with all of ClawEval's published ones."""

import random
import re
from dataclasses import replace

from tasks.adapters import Item
from tasks.adapters import claweval
from tasks.adapters import webvoyager
from tasks.adapters.sides import divided
from tests.tasks.adapters.published import published


def item(name: str, text: str = "", *kin: str) -> Item:
    record = webvoyager.Question(id=name, web_name="x", ques="q", web="w")
    return Item(name, text or random.Random(name).randbytes(30).hex(), "x", (), record, kin)


def trained(items: list[Item], share: float) -> set[str]:
    return {each.id for each in divided(items, share) if each.split == "train"}


ITEMS = [item(f"task-{number}") for number in range(400)]


def test_about_the_share_is_trained_on_and_a_larger_one_keeps_them() -> None:
    few, half = trained(ITEMS, 0.2), trained(ITEMS, 0.5)
    assert 60 <= len(few) <= 100 and 170 <= len(half) <= 230
    assert few < half
    assert trained(ITEMS, 0.0) == set()


def test_a_side_hangs_on_nothing_but_the_set() -> None:
    half = trained(ITEMS, 0.5)
    assert trained(random.Random(0).sample(ITEMS, len(ITEMS)), 0.5) == half
    assert trained(ITEMS[:100], 0.5) == half & {each.id for each in ITEMS[:100]}


def test_kin_are_on_one_side_by_marks_and_by_their_words() -> None:
    words = "Find the invoice of March that was paid twice and say by whom it was paid."
    for number in range(20):
        a, b, c, d = (f"{name}{number}" for name in "abcd")
        family = [
            item(a, "", f"x{number}"),
            item(b, f"{words} {number}", f"x{number}", f"y{number}"),
            item(c, "", f"y{number}"),
        ]
        items = [*family, item(d, f"{words} {number}!")]
        assert len(trained(items, 0.5)) in (0, 4)
    assert trained([replace(each, kin=("all",)) for each in ITEMS], 0.5) in (set(), {each.id for each in ITEMS})


def test_the_published_tasks_that_are_one_in_two_languages_are_on_one_side() -> None:
    sides: dict[str, set[str]] = {}
    items = divided(claweval.read(published("claw-eval")), 0.5)
    for each in items:
        assert isinstance(each.record, claweval.Sheet)
        sides.setdefault(re.sub("^[A-Z]+[0-9]+(zh|en)?_", "", each.record.folder), set()).add(each.split)
    assert len(sides) == 245  # of 300: 55 are there twice
    assert all(len(side) == 1 for side in sides.values())
    assert 100 <= sum(each.split == "train" for each in items) <= 200
