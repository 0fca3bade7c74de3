"""The published task files that may lie beside the repository, in shared/data; none of them is in it."""

from pathlib import Path

import pytest


def published(name: str) -> Path:
    """The folder of a set's files, or skip the test where they are not on this machine."""
    for parent in Path(__file__).parents:
        if (parent / "shared/data" / name).is_dir():
            return parent / "shared/data" / name
    pytest.skip(f"the published files of {name} are not on this machine (shared/data/{name} beside the repository)")
