"""JSON and settings files: reading, changing, converting. Their checks and solutions use Python."""

import json
import random
from typing import Any

from tasks.curate.draft import PYTHON_IMAGE
from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import CITIES
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import PEOPLE
from tasks.curate.families.words import joined
from tasks.curate.families.words import paths

_STATES = ("on", "off", "auto")


def _tree(rng: random.Random, depth: int) -> dict[str, Any]:
    """An object of objects; the innermost have a state and a limit."""
    if depth == 0:
        return {"state": rng.choice(_STATES), "limit": rng.randint(1, 99)}
    return {name: _tree(rng, depth - 1) for name in rng.sample(NOUNS, 3)}


def _walk(rng: random.Random, tree: dict[str, Any], depth: int) -> list[str]:
    names = []
    for _ in range(depth):
        names.append(rng.choice(sorted(tree)))
        tree = tree[names[-1]]
    return names


def _at(tree: dict[str, Any], names: list[str]) -> Any:
    for name in names:
        tree = tree[name]
    return tree


def json_read(rng: random.Random, level: int, split: str) -> Draft:
    """A value deep in a file; at level 3 the sum of all limits."""
    folder, out = rng.choice(FOLDERS), f"{rng.choice(NOUNS)}.txt"
    (path,) = paths(rng, folder, 1, ".json")
    tree = _tree(rng, level)
    names = _walk(rng, tree, level)
    if level == 3:
        top = names[0]
        total = sum(leaf["limit"] for branch in tree[top].values() for leaf in branch.values())
        say = f"Add up every 'limit' below '{top}' in {path} and write the sum to {out}."
        solve = (
            f"import json; print(sum(leaf['limit'] for branch in json.load(open('{path}'))['{top}'].values() "
            "for leaf in branch.values()))"
        )
        answer = str(total)
    else:
        key = rng.choice(("state", "limit"))
        dotted = ".".join([*names, key])
        say = rng.choice(
            (f"Write the value of {dotted} in {path} to {out}.", f"What is {dotted} in {path}? Put it into {out}.")
        )
        index = "".join(f"['{name}']" for name in [*names, key])
        solve = f"import json; print(json.load(open('{path}')){index})"
        answer = str(_at(tree, names)[key])
    files = {path: json.dumps(tree, indent=2)}
    return Draft(say, files, check({out: answer}), f'python3 -c "{solve}" > {out}', PYTHON_IMAGE)


def json_set(rng: random.Random, level: int, split: str) -> Draft:
    """A state is switched, at level 3 for all entries below a name, and everything else stays."""
    folder, state = rng.choice(FOLDERS), rng.choice(_STATES)
    (path,) = paths(rng, folder, 1, ".json")
    tree = _tree(rng, level)
    after = json.loads(json.dumps(tree))
    names = _walk(rng, tree, level)
    if level == 3:
        for leaf in _at(after, names[:2]).values():
            leaf["state"] = state
        what = f"the state of everything below {'.'.join(names[:2])}"
    else:
        _at(after, names)["state"] = state
        what = ".".join([*names, "state"])
    say = rng.choice(
        (
            f"Set {what} in {path} to '{state}'. The rest of the file must keep its values.",
            f"In {path}, {what} should be '{state}'; change no other value.",
        )
    )
    index = "".join(f"['{name}']" for name in names[: 2 if level == 3 else level])
    body = "for leaf in t{0}.values(): leaf['state'] = '{1}'" if level == 3 else "t{0}['state'] = '{1}'"
    solve = joined(
        [
            "python3 - <<'END'",
            "import json",
            f"t = json.load(open('{path}'))",
            body.format(index, state),
            f"json.dump(t, open('{path}', 'w'), indent=2)",
            "END",
        ]
    )
    show = f"python3 -c \"import json; print(json.dumps(json.load(open('{path}')), sort_keys=True))\""
    tests = check(prints={show: json.dumps(after, sort_keys=True)})
    return Draft(say, {path: json.dumps(tree, indent=2)}, tests, solve, PYTHON_IMAGE)


def csv_to_json(rng: random.Random, level: int, split: str) -> Draft:
    """A table becomes a list of objects, or an object by name, with numbers as numbers."""
    folder = rng.choice(FOLDERS)
    source, target = f"{folder}/{rng.choice(NOUNS)}.csv", f"{rng.choice(NOUNS)}.json"
    people = rng.sample(PEOPLE, 2 + 2 * level)
    rows = [{"name": name, "city": rng.choice(CITIES), "age": rng.randint(18, 80)} for name in people]
    adults = rng.randint(30, 60)
    kept = [row for row in rows if level < 3 or int(str(row["age"])) >= adults]
    result: Any = {row["name"]: {"city": row["city"], "age": row["age"]} for row in kept} if level > 1 else kept
    shape = (
        "an object from name to an object with city and age"
        if level > 1
        else "a list of objects with name, city and age"
    )
    only = f" of those who are {adults} or older" if level == 3 else ""
    say = rng.choice(
        (
            f"Convert {source} to {target}: {shape}{only}. Ages are numbers.",
            f"Write {target}, {shape}, from the rows of {source}{only}; the ages as JSON numbers.",
        )
    )
    make = {
        1: "[{**row, 'age': int(row['age'])} for row in rows]",
        2: "{row['name']: {'city': row['city'], 'age': int(row['age'])} for row in rows}",
        3: "{row['name']: {'city': row['city'], 'age': int(row['age'])} for row in rows"
        f" if int(row['age']) >= {adults}}}",
    }[level]
    solve = joined(
        [
            "python3 - <<'END'",
            "import csv, json",
            f"rows = list(csv.DictReader(open('{source}')))",
            f"json.dump({make}, open('{target}', 'w'))",
            "END",
        ]
    )
    show = f"python3 -c \"import json; print(json.dumps(json.load(open('{target}')), sort_keys=True))\""
    text = joined(["name,city,age", *(f"{row['name']},{row['city']},{row['age']}" for row in rows)])
    return Draft(say, {source: text}, check(prints={show: json.dumps(result, sort_keys=True)}), solve, PYTHON_IMAGE)


def merge_settings(rng: random.Random, level: int, split: str) -> Draft:
    """Settings files are laid over one another; later ones win."""
    folder = rng.choice(FOLDERS)
    keys = [noun.upper() for noun in rng.sample(NOUNS, 2 + 2 * level)]
    found = paths(rng, folder, 1 + level, ".env")
    layers = [
        {key: str(rng.randint(1, 999)) for key in keys if number == 0 or rng.random() < 0.5}
        for number in range(len(found))
    ]
    merged = {key: value for layer in layers for key, value in layer.items()}
    out = f"{folder}/merged.env"
    over = f"{found[0]} overridden by {', then by '.join(found[1:])}"
    say = rng.choice(
        (
            f"Write {out}: the settings of {over}. One KEY=value a line, sorted by key.",
            f"Merge settings into {out}, sorted by key, one KEY=value a line: {over}.",
        )
    )
    solve = (
        f"cat {' '.join(found)} | awk -F= '{{value[$1] = $2}} END {{for (key in value) print key \"=\" value[key]}}'"
    )
    files = {
        path: joined([f"{key}={value}" for key, value in layer.items()])
        for path, layer in zip(found, layers, strict=True)
    }
    text = joined([f"{key}={merged[key]}" for key in sorted(merged)])
    return Draft(say, files, check({out: text}), f"{solve} | sort > {out}")


FAMILIES = {
    "json-read": Family(json_read),
    "json-set": Family(json_set),
    "csv-to-json": Family(csv_to_json),
    "merge-settings": Family(merge_settings),
}
