from collections import Counter
from pathlib import Path

import pytest

from tasks.curate import wishes
from tasks.curate.wishes import Direction

LEVELS = {"logs": 3, "basic": 2}


def test_families_take_turns_and_levels_stay_in_their_bounds() -> None:
    found = wishes.first(200, 7, LEVELS, 0.1)
    assert Counter(wish.family for wish in found) == {"logs": 100, "basic": 100}
    assert {(wish.family, wish.level) for wish in found} == {("logs", n) for n in (1, 2, 3)} | {
        ("basic", n) for n in (1, 2)
    }
    assert len({wish.task for wish in found}) == len({wish.seed for wish in found}) == 200
    assert found == wishes.first(200, 7, LEVELS, 0.1)
    assert found != wishes.first(200, 8, LEVELS, 0.1)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 20), (0.25, 50), (0.9, 180)])
def test_the_heldout_share_is_exact_and_in_every_family(share: float, count: int) -> None:
    found = [wish for wish in wishes.first(200, 0, {"a": 1, "b": 1, "c": 1}, share) if wish.split == "heldout"]
    assert len(found) == count
    assert len({wish.family for wish in found}) == (3 if count else 0)


@pytest.mark.parametrize(
    ("level", "direction", "wanted"), [(2, "harder", 3), (2, "easier", 1), (3, "harder", None), (1, "easier", None)]
)
def test_a_refinement_is_one_level_off_where_there_is_one(level: int, direction: Direction, wanted: int | None) -> None:
    wish = wishes.first(1, 0, {"logs": 1}, 0.0)[0].model_copy(update={"level": level})
    found = wishes.refined(wish, direction, 1, LEVELS, 0.0, "did nothing")
    assert (found.level if found else None) == wanted
    if found:
        assert (found.task, found.parent, found.direction) == ("logs-0000-r1", "logs-0000", direction)
        assert (found.seed, found.split, found.transcript) != (wish.seed, wish.split, "")


def test_names_do_not_grow_with_the_rounds() -> None:
    wish = wishes.first(1, 0, {"logs": 1}, 0.0)[0]
    first = wishes.refined(wish, "harder", 1, LEVELS, 1.0, "")
    assert first is not None
    second = wishes.refined(first, "harder", 2, LEVELS, 1.0, "")
    assert second is not None
    assert (second.task, second.parent) == ("logs-0000-r2", "logs-0000-r1")


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = wishes.first(3, 0, LEVELS, 0.5)
    assert wishes.read(tmp_path / "wishes.json") is None
    wishes.write(tmp_path / "wishes.json", found)
    assert wishes.read(tmp_path / "wishes.json") == found
