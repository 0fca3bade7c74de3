"""Who proposes tasks, what every proposer is asked in the same way, and the one that needs no model."""

import random
from collections.abc import Collection
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tasks.curate.draft import Draft
from tasks.curate.families import FAMILIES
from tasks.curate.wishes import Wish


class Proposer(Protocol):
    """Makes drafts of wishes. `levels` are its families by name, each with the number of its levels."""

    levels: Mapping[str, int]
    at_once: int
    """Wishes that may be open at a time."""

    async def propose(self, wish: Wish, parent: Path | None) -> Draft:
        """The draft of a task as wished; `parent` is the folder of the task that it refines.

        Raises Unusable if nothing can be made of what was proposed, and InfrastructureError or ConfigError if nothing
        was.
        """


class TemplateProposer:
    """The built-in families, or those that are named. A refinement is a draw of its family at the next level."""

    at_once = 1

    def __init__(self, families: Collection[str] = ()) -> None:
        self.levels: Mapping[str, int] = {
            name: family.levels for name, family in FAMILIES.items() if not families or name in families
        }

    async def propose(self, wish: Wish, parent: Path | None) -> Draft:
        """The family's draw from the wish's seed."""
        return FAMILIES[wish.family].make(random.Random(wish.seed), wish.level, wish.split)
