"""What is asked of a proposer: so many tasks at first, and then harder and easier ones, after what a probe showed."""

import random
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import TypeAdapter

from tasks.report import write_text

Direction = Literal["harder", "easier"]


class Wish(BaseModel):
    """One task that a proposer should make, by the name `task`. Equal wishes lead the template proposer to equal tasks.

    `family` is one of the proposer's own, `level` from 1. A refinement has a `parent`, the `direction` away from it,
    the `pass_rate` that a policy had at it, and the `transcript` of one of its attempts.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    seed: str
    split: str
    family: str
    level: int
    parent: str | None = None
    direction: Direction | None = None
    pass_rate: float | None = None
    transcript: str = ""


_LIST = TypeAdapter(list[Wish])


def first(count: int, seed: int, levels: Mapping[str, int], heldout_share: float) -> list[Wish]:
    """`count` wishes, the families of `levels` in turns, the level from 1 to the family's own drawn. A share of them,
    evenly spread, is for the held-out split."""
    families = list(levels)
    wishes = []
    for number in range(count):
        family, rng = families[number % len(families)], random.Random(f"{seed}-{number}")
        heldout = int((number + 1) * heldout_share) > int(number * heldout_share)
        wishes.append(
            Wish(
                task=f"{family}-{number:04}",
                seed=f"{seed}-{number}",
                split="heldout" if heldout else "train",
                family=family,
                level=rng.randint(1, levels[family]),
            )
        )
    return wishes


def refined(
    wish: Wish, direction: Direction, round_: int, levels: Mapping[str, int], pass_rate: float, transcript: str
) -> Wish | None:
    """The wish for a harder or easier task than that of `wish`; None if its family has no such level."""
    level = wish.level + (1 if direction == "harder" else -1)
    if not 1 <= level <= levels[wish.family]:
        return None
    root = wish.task if wish.parent is None else wish.task.rsplit("-r", 1)[0]
    return Wish(
        task=f"{root}-r{round_}",
        seed=f"{wish.seed}-r{round_}",
        split=wish.split,
        family=wish.family,
        level=level,
        parent=wish.task,
        direction=direction,
        pass_rate=pass_rate,
        transcript=transcript,
    )


def write(file: Path, wishes: Sequence[Wish]) -> None:
    """Write a round's wishes, whole or not at all."""
    write_text(file, _LIST.dump_json(list(wishes), indent=1).decode())


def read(file: Path) -> list[Wish] | None:
    """A round's wishes; None if they have not been written."""
    return _LIST.validate_json(file.read_bytes()) if file.is_file() else None
