"""Lists the task sets: how many tasks each has, what they need, and what of it is missing on this machine.

    python -m tasks.list                                        # the sets that are known
    python -m tasks.list claweval:/path/to/checkout webvoyager:/path [--tasks]

A set that was not given has its line too, with the folder that it wants. `--tasks` adds a line per task, and
what to do about each thing that is missing.
"""

import argparse
import sys
from collections.abc import Iterator
from collections.abc import Sequence

from proxy_addons.errors import ConfigError
from tasks import adapters
from tasks import builtin
from tasks.adapters import Item
from tasks.run import BUILTIN_HELDOUT
from tasks.run import BUILTIN_TRAIN


def lines(sources: Sequence[str], each: bool) -> Iterator[str]:
    """The list. Raises ConfigError."""
    given: dict[str, list[str]] = {}
    for source in sources:
        found = adapters.split(source)
        if found is None:
            raise ConfigError(f"task set {source}: spell it NAME:FOLDER, NAME one of {', '.join(adapters.NAMES)}")
        given.setdefault(found[0].NAME, []).append(source)
    yield _line(
        "builtin", BUILTIN_TRAIN + BUILTIN_HELDOUT, f"small shell tasks of {len(builtin.KINDS)} kinds; all can run here"
    )
    yield _line("FOLDER", None, "any folder of Harbor tasks; make tasks-validate DIR=FOLDER")
    for name in adapters.NAMES:
        adapter = adapters.get(name)
        if name not in given:
            yield _line(name, None, f"{adapter.ABOUT}; not given: name {adapter.GIVE}")
        for source in given.get(name, ()):
            _, folder = adapters.split(source) or (None, None)
            assert folder
            items = adapter.read(folder)
            yield _line(name, len(items), f"{adapter.ABOUT}; {_state(items)}")
            if each:
                yield from (f"    {item.id:<40} {_needs(item)}" for item in items)
                yield from (f"    missing: {short}: {remedy}" for short, remedy in adapters.lacking(items))


def _line(name: str, count: int | None, text: str) -> str:
    return f"{name:<16} {'' if count is None else count:>5}  {text}"


def _state(items: Sequence[Item]) -> str:
    ready = sum(not item.missing for item in items)
    missing = ", ".join(short for short, _ in adapters.lacking(items))
    return f"{ready or 'none'} can run here; missing: {missing}" if missing else "all can run here"


def _needs(item: Item) -> str:
    if not item.needs:
        return "nothing"
    return ", ".join(f"{need}{' (missing)' if need.missing else ''}" for need in item.needs)


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.list", description="task sets and what is missing for them")
    parser.add_argument("sets", nargs="*", metavar="NAME:FOLDER", help="a benchmark and where it is")
    parser.add_argument("--tasks", action="store_true", help="a line per task, with what it needs")
    given = parser.parse_args(arguments)
    try:
        for line in lines(given.sets, given.tasks):
            print(line)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
