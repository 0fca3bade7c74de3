"""CSV tables: sums, selections, groups, joins. All numbers are whole, so that nothing hangs on rounding."""

import random
from collections.abc import Sequence

from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import CITIES
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import PEOPLE
from tasks.curate.families.words import joined

_SHAPES = (
    ("sales", ("city", "item", "units", "price"), (CITIES, NOUNS)),
    ("shifts", ("worker", "city", "hours", "rate"), (PEOPLE, CITIES)),
    ("trips", ("driver", "target", "km", "minutes"), (PEOPLE, CITIES)),
    ("stock", ("item", "keeper", "count", "weight"), (NOUNS, PEOPLE)),
    ("scores", ("player", "game", "points", "rank"), (PEOPLE, NOUNS)),
)
Row = tuple[str, str, int, int]


def _table(rng: random.Random, count: int) -> tuple[str, Sequence[str], list[Row]]:
    """A file's path, its columns (two of words, two of numbers) and `count` rows. Words come again."""
    name, columns, words = rng.choice(_SHAPES)
    few = [rng.sample(list_, 4) for list_ in words]
    rows = [(rng.choice(few[0]), rng.choice(few[1]), rng.randint(1, 90), rng.randint(1, 90)) for _ in range(count)]
    return f"{rng.choice(FOLDERS)}/{name}.csv", columns, rows


def _csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return joined([",".join(columns), *(",".join(map(str, row)) for row in rows)])


def csv_sum(rng: random.Random, level: int, split: str) -> Draft:
    """The sum of a column; from level 2 of the rows with a word, at level 3 of a product."""
    path, columns, rows = _table(rng, 6 * level)
    by, out = rng.choice((0, 1)), f"{rng.choice(NOUNS)}.txt"
    value = rng.choice(rows)[by]
    used = [row for row in rows if level == 1 or row[by] == value]
    total = sum(row[2] * row[3] if level == 3 else row[2] for row in used)
    what = f"{columns[2]} times {columns[3]}" if level == 3 else columns[2]
    where = f" over the rows whose {columns[by]} is {value}" if level > 1 else ""
    say = rng.choice(
        (
            f"Add up {what} in {path}{where} and write the sum to {out}.",
            f"What is the total of {what} in {path}{where}? Write it to {out}, the number alone.",
        )
    )
    term = "$3*$4" if level == 3 else "$3"
    only = f' && ${by + 1} == "{value}"' if level > 1 else ""
    return Draft(
        say,
        {path: _csv(columns, rows)},
        check({out: f"{total}\n"}),
        f"awk -F, 'NR > 1{only} {{sum += {term}}} END {{print sum}}' {path} > {out}",
    )


def csv_filter(rng: random.Random, level: int, split: str) -> Draft:
    """Rows above or below a bound into a new table, at level 2 sorted, at level 3 of some columns."""
    path, columns, rows = _table(rng, 5 * level)
    bound, above = rng.randint(5, 85), rng.random() < 0.5
    out = f"{rng.choice(NOUNS)}.csv"
    kept = [row for row in rows if (row[2] > bound if above else row[2] < bound)]
    if level > 1:
        kept.sort(key=lambda row: (row[0], row[1], row[2], row[3]))
    text = _csv((columns[0], columns[2]), [(row[0], row[2]) for row in kept]) if level == 3 else _csv(columns, kept)
    order = ", sorted by their columns from left to right" if level > 1 else ", in their order"
    some = f", only the columns {columns[0]} and {columns[2]}" if level == 3 else ""
    sign = "more" if above else "less"
    say = rng.choice(
        (
            f"Write to {out} the header of {path} and the rows with a {columns[2]} of {sign} than "
            f"{bound}{order}{some}.",
            f"From {path} keep the rows where {columns[2]} is {sign} than {bound}{order}{some}; result with "
            f"header in {out}.",
        )
    )
    sort = " | sort -t, -k1,1 -k2,2 -k3,3n -k4,4n" if level > 1 else ""
    cut = f" && cut -d, -f1,3 {out} > {out}.part && mv {out}.part {out}" if level == 3 else ""
    solve = f"(head -n 1 {path}; tail -n +2 {path} | awk -F, '$3 {'>' if above else '<'} {bound}'{sort}) > {out}{cut}"
    return Draft(say, {path: _csv(columns, rows)}, check({out: text}), solve)


def csv_group(rng: random.Random, level: int, split: str) -> Draft:
    """Counts, sums or largest values per group."""
    path, columns, rows = _table(rng, 8 * level)
    by, out = rng.choice((0, 1)), f"{rng.choice(NOUNS)}.csv"
    what = ("number of rows", f"sum of {columns[2]}", f"largest {columns[3]}")[level - 1]
    groups = sorted({row[by] for row in rows})
    of = {group: [row for row in rows if row[by] == group] for group in groups}
    values = {
        group: (len(found), sum(row[2] for row in found), max(row[3] for row in found))[level - 1]
        for group, found in of.items()
    }
    say = rng.choice(
        (
            f"For each {columns[by]} in {path} write a line to {out}: its name, a comma and its {what}. Sort by name; "
            "no header.",
            f"Group {path} by {columns[by]}. {out} gets one line a group, sorted, without header: name, comma, {what}.",
        )
    )
    step = ("value[key]++", "value[key] += $3", "if ($4 > value[key]) value[key] = $4")[level - 1]
    solve = f"awk -F, 'NR > 1 {{key = ${by + 1}; {step}}} END {{for (key in value) print key \",\" value[key]}}' {path}"
    text = joined([f"{group},{value}" for group, value in values.items()])
    return Draft(say, {path: _csv(columns, rows)}, check({out: text}), f"{solve} | sort > {out}")


def csv_join(rng: random.Random, level: int, split: str) -> Draft:
    """Two tables become one by a name that both have; from level 2 not every name is in both."""
    folder, out = rng.choice(FOLDERS), f"{rng.choice(NOUNS)}.csv"
    names = rng.sample(PEOPLE, 2 + 2 * level)
    first, second = (rng.sample(names, len(names) - (level > 1) * rng.randint(0, level)) for _ in range(2))
    cities = {name: rng.choice(CITIES) for name in first}
    ages = {name: rng.randint(18, 80) for name in second}
    a, b = f"{folder}/cities.csv", f"{folder}/ages.csv"
    joined_rows = [(name, cities[name], ages[name]) for name in sorted(set(first) & set(second))]
    both = "; leave out names that only one of them has" if level > 1 else ""
    say = rng.choice(
        (
            f"Join {a} and {b} by name into {out} with the header name,city,age, sorted by name{both}.",
            f"Make one table of {a} and {b}: {out}, header name,city,age, a row for each name, sorted by name{both}.",
        )
    )
    solve = f"(echo name,city,age; join -t, <(tail -n +2 {a} | sort) <(tail -n +2 {b} | sort)) > {out}"
    files = {a: _csv(("name", "city"), list(cities.items())), b: _csv(("name", "age"), list(ages.items()))}
    return Draft(say, files, check({out: _csv(("name", "city", "age"), joined_rows)}), solve)


FAMILIES = {
    "csv-sum": Family(csv_sum),
    "csv-filter": Family(csv_filter),
    "csv-group": Family(csv_group),
    "csv-join": Family(csv_join),
}
