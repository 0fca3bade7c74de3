"""The kinds of the built-in set, so that a curated set has tasks that the smallest policy can begin with."""

import random

from tasks import builtin
from tasks.curate.draft import Draft
from tasks.curate.families.family import Family

_BY_COMMANDS = {1: ("find", "config", "check"), 2: ("read", "choose", "recover")}


def basic(rng: random.Random, level: int, split: str) -> Draft:
    """One of the built-in kinds; level 2 takes two commands."""
    sketch = builtin.KINDS[rng.choice(_BY_COMMANDS[level])](builtin.Draw(split, rng))
    return Draft(sketch.instruction, sketch.files, {"test.sh": builtin.test_script(sketch.condition)}, sketch.solution)


FAMILIES = {"basic": Family(basic, levels=2)}
