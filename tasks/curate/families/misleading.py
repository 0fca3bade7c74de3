"""A tool whose first answer is plain and wrong: what it says besides, or the data, tells whoever looks."""

import random
from datetime import date
from datetime import timedelta

from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import PEOPLE
from tasks.curate.families.words import joined

Entry = tuple[str, str, int]
"""Day, name, amount."""


def stale_report(rng: random.Random, level: int, split: str) -> Draft:
    """A script prints totals that it has kept since before the last entries. Its last line says so at level 1, names
    the day of its last entry at level 2, and how many entries it counted at level 3, where all totals are asked for."""
    folder, (data, script) = rng.choice(FOLDERS), rng.sample(NOUNS, 2)
    data, kept, script = f"{folder}/{data}.csv", f"{folder}/{data}.kept", f"{folder}/{script}.sh"
    names = sorted(rng.sample(PEOPLE, 2 + level))
    days = sorted(rng.sample(range(365), 8 + 4 * level))
    entries = [(f"{date(2025, 1, 1) + timedelta(day)}", rng.choice(names), rng.randint(1, 90)) for day in days]
    before = entries[: -rng.randint(2, 5)]
    # Amounts are above 0, so whoever has the last entry has another total than the report says.
    name = entries[-1][1]
    last, (now, then) = (
        ("kept since {}; --fresh counts anew", ("$(date +%F)", before[-1][0])),
        ("last entry: {}", (f"$(tail -n 1 {data} | cut -d, -f1)", before[-1][0])),
        ("{} entries", (f"$(wc -l < {data})", f"{len(before)}")),
    )[level - 1]
    count = f"awk -F, '{{n[$2] += $3}} END {{for (name in n) print name, n[name]}}' {data} | sort"
    text = f"""\
# The totals of {data} by name, from {kept}; with --fresh they are counted anew.
if [ "$1" = --fresh ]; then
    {{ {count}; echo "{last.format(now)}"; }} > {kept}
fi
cat {kept}
"""
    asked = f"the total of {name}" if level < 3 else "each name's total, one 'name total' a line, sorted by name,"
    say = rng.choice(
        (
            f"Write {asked} over all entries of {data} to answer.txt. {script} reports the totals.",
            f"{script} prints the totals of {data} by name. Put {asked} into answer.txt; every entry counts.",
        )
    )
    files = {
        data: joined([f"{day},{who},{amount}" for day, who, amount in entries]),
        kept: joined([*_totals(before), last.format(then)]),
        script: text,
    }
    whole = _totals(entries)
    answer = whole if level == 3 else [row.split()[1] for row in whole if row.split()[0] == name]
    pick = "sed '$d'" if level == 3 else f"awk '$1 == \"{name}\" {{print $2}}'"
    wrong = [row for row in _totals(before) if not any(row in true for true in whole)]
    return Draft(
        say,
        files,
        check({"answer.txt": joined(answer)}),
        f"sh {script} --fresh | {pick} > answer.txt",
        misleading=(*wrong, last.format(then)),
    )


def _totals(entries: list[Entry]) -> list[str]:
    names = sorted({name for _, name, _ in entries})
    return [f"{name} {sum(amount for _, who, amount in entries if who == name)}" for name in names]


FAMILIES = {"stale-report": Family(stale_report)}
