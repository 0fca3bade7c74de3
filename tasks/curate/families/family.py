"""What a family is."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tasks.curate.draft import Draft

Make = Callable[[random.Random, int, str], Draft]
"""From random numbers, a level from 1 and a split to a draft."""


@dataclass(frozen=True)
class Family:
    """`levels` are 1 … `levels`, from easy to hard."""

    make: Make
    levels: int = 3
