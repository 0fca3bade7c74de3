"""Small Python programs: a bug to mend, a function to write, a script that does not run."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.curate.draft import PYTHON_IMAGE
from tasks.curate.draft import Draft
from tasks.curate.draft import check
from tasks.curate.families.family import Family
from tasks.curate.families.words import FOLDERS
from tasks.curate.families.words import NOUNS
from tasks.curate.families.words import joined


@dataclass(frozen=True)
class Function:
    """`right` and `wrong` are bodies of a function of `arguments`; `does` says what it is for, `case` draws arguments
    and `of` computes what it must return."""

    does: str
    arguments: str
    right: str
    wrong: str
    case: Callable[[random.Random], tuple[Any, ...]]
    of: Callable[..., Any]


def _numbers(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(-20, 40) for _ in range(rng.randint(1, 6))],)


def _words(rng: random.Random) -> tuple[str]:
    return (" ".join(rng.sample(NOUNS, rng.randint(1, 4))),)


def _runs(values: list[int]) -> int:
    best = run = 0
    for place, value in enumerate(values):
        run = run + 1 if place and value > values[place - 1] else 1
        best = max(best, run)
    return best


_BY_LEVEL: tuple[tuple[Function, ...], ...] = (
    (
        Function(
            "returns the sum of the numbers in a list that are above a limit",
            "numbers, limit",
            "return sum(n for n in numbers if n > limit)",
            "return sum(n for n in numbers if n >= limit)",
            lambda rng: (_numbers(rng)[0], rng.randint(-5, 20)),
            lambda numbers, limit: sum(n for n in numbers if n > limit),
        ),
        Function(
            "returns a text with its words in reverse order",
            "text",
            'return " ".join(reversed(text.split()))',
            "return text[::-1]",
            _words,
            lambda text: " ".join(reversed(text.split())),
        ),
        Function(
            "returns the difference between the largest and the smallest number of a list",
            "numbers",
            "return max(numbers) - min(numbers)",
            "return numbers[-1] - numbers[0]",
            _numbers,
            lambda numbers: max(numbers) - min(numbers),
        ),
        Function(
            "returns how many vowels (a, e, i, o, u) a text has",
            "text",
            'return sum(c in "aeiou" for c in text)',
            'return sum(c in "aeio" for c in text)',
            _words,
            lambda text: sum(c in "aeiou" for c in text),
        ),
    ),
    (
        Function(
            "returns the numbers of a list without repeats, in the order in which they first occur",
            "numbers",
            "return list(dict.fromkeys(numbers))",
            "return sorted(set(numbers))",
            lambda rng: ([rng.randint(1, 6) for _ in range(8)],),
            lambda numbers: list(dict.fromkeys(numbers)),
        ),
        Function(
            "turns seconds into a text such as 1:02:09 (hours, minutes, seconds)",
            "seconds",
            'return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"',
            'return f"{seconds // 3600}:{seconds // 60 % 60}:{seconds % 60}"',
            lambda rng: (rng.randint(0, 90_000),),
            lambda s: f"{s // 3600}:{s // 60 % 60:02}:{s % 60:02}",
        ),
        Function(
            "says whether a text reads the same backwards if spaces do not count",
            "text",
            'text = text.replace(" ", "")\n    return text == text[::-1]',
            "return text == text[::-1]",
            lambda rng: (rng.choice(("never odd or even", "step on no pets", "a b a", "ab", "nurses run", "no on e")),),
            lambda text: text.replace(" ", "") == text.replace(" ", "")[::-1],
        ),
        Function(
            "returns the words of a text, the longest first and equally long ones in alphabetical order",
            "text",
            "return sorted(text.split(), key=lambda word: (-len(word), word))",
            "return sorted(text.split(), key=len, reverse=True)",
            lambda rng: (" ".join(rng.sample(NOUNS, 6)),),
            lambda text: sorted(text.split(), key=lambda word: (-len(word), word)),
        ),
    ),
    (
        Function(
            "returns the length of the longest run of neighbours in a list in which every number is larger than the "
            "one before it",
            "numbers",
            "best = run = 0\n    last = None\n    for n in numbers:\n"
            "        run = run + 1 if last is not None and n > last else 1\n"
            "        best, last = max(best, run), n\n    return best",
            "best = run = 1\n    for a, b in zip(numbers, numbers[1:]):\n        run = run + 1 if b >= a else 1\n"
            "        best = max(best, run)\n    return best",
            lambda rng: ([rng.randint(1, 5) for _ in range(rng.randint(0, 9))],),
            _runs,
        ),
        Function(
            "merges overlapping or touching intervals (pairs of start and end) and returns them sorted, as lists",
            "intervals",
            "merged = []\n    for start, end in sorted(intervals):\n        if merged and start <= merged[-1][1]:\n"
            "            merged[-1][1] = max(merged[-1][1], end)\n        else:\n"
            "            merged.append([start, end])\n"
            "    return merged",
            "merged = []\n    for start, end in sorted(intervals):\n        if merged and start <= merged[-1][1]:\n"
            "            merged[-1][1] = end\n        else:\n"
            "            merged.append([start, end])\n    return merged",
            lambda rng: ([[s, s + rng.randint(0, 9)] for s in rng.sample(range(30), 5)],),
            lambda intervals: _merged(intervals),
        ),
        Function(
            "packs a text: each run of one letter becomes the letter and its length, so that aaab becomes a3b1",
            "text",
            'packed = ""\n    while text:\n        rest = text.lstrip(text[0])\n'
            '        packed += f"{text[0]}{len(text) - len(rest)}"\n        text = rest\n    return packed',
            'packed = ""\n    for letter in dict.fromkeys(text):\n        packed += f"{letter}{text.count(letter)}"\n'
            "    return packed",
            lambda rng: ("".join(rng.choice("abc") * rng.randint(1, 3) for _ in range(rng.randint(0, 5))),),
            lambda text: _packed(text),
        ),
    ),
)


def _merged(intervals: list[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _packed(text: str) -> str:
    packed = ""
    while text:
        rest = text.lstrip(text[0])
        packed += f"{text[0]}{len(text) - len(rest)}"
        text = rest
    return packed


def _draw(rng: random.Random, level: int) -> tuple[Function, str, str, dict[str, str]]:
    """A function, its file and name, and the tests that call it on five drawn cases."""
    function = rng.choice(_BY_LEVEL[level - 1])
    folder, module, name = rng.choice(FOLDERS), f"{rng.choice(NOUNS)}_tools", f"{rng.choice(NOUNS)}_of"
    cases = [function.case(rng) for _ in range(5)]
    call = (
        f"PYTHONPATH={folder} python3 -c 'import json, sys; from {module} import {name}; "
        f"print(json.dumps([{name}(*case) for case in json.loads(sys.argv[1])]))' '{json.dumps(cases)}'"
    )
    tests = check(prints={call: json.dumps([function.of(*case) for case in cases])})
    return function, f"{folder}/{module}.py", name, tests


def _source(name: str, function: Function, body: str) -> str:
    return f"def {name}({function.arguments}):\n    {body}\n"


def _here(path: str, text: str) -> str:
    return f"cat > {path} <<'END'\n{text}END\n"


def mend_function(rng: random.Random, level: int, split: str) -> Draft:
    """A function that does not do what it should."""
    function, path, name, tests = _draw(rng, level)
    say = rng.choice(
        (
            f"{name} in {path} has a bug. It {function.does}, or should. Mend it.",
            f"Somebody reports wrong results from {name} ({path}), which {function.does}. Find the mistake "
            "and correct it.",
        )
    )
    files = {path: _source(name, function, function.wrong)}
    return Draft(say, files, tests, _here(path, _source(name, function, function.right)), PYTHON_IMAGE)


def write_function(rng: random.Random, level: int, split: str) -> Draft:
    """A function that is not there yet."""
    function, path, name, tests = _draw(rng, level)
    say = rng.choice(
        (
            f"Write a function {name}({function.arguments}) in {path} that {function.does}.",
            f"{path} needs a function {name}({function.arguments}). It {function.does}.",
        )
    )
    return Draft(say, {path: "# to do\n"}, tests, _here(path, _source(name, function, function.right)), PYTHON_IMAGE)


def mend_script(rng: random.Random, level: int, split: str) -> Draft:
    """A script that stops with an error: a wrong path, then a wrong key too, then a syntax error on top."""
    folder, (data, script, key, wrong) = rng.choice(FOLDERS), rng.sample(NOUNS, 4)
    numbers = [rng.randint(1, 50) for _ in range(2 + level)]
    right = joined(
        [
            "import json",
            "",
            f'with open("{folder}/{data}.json") as file:',
            "    rows = json.load(file)",
            f'print("total:", sum(row["{key}"] for row in rows))',
        ]
    )
    broken = right.replace(f"{folder}/{data}.json", f"{folder}/{wrong}.json")
    if level > 1:
        broken = broken.replace(f'row["{key}"]', f'row["{wrong}"]')
    if level > 2:
        broken = broken.replace("json.load(file)", "json.load(file")
    path = f"{folder}/{script}.py"
    say = rng.choice(
        (
            f"python3 {path} should print the total of '{key}' in {folder}/{data}.json, and fails. Get it to work.",
            f"Repair {path}: run from here, it must print the sum of '{key}' over the rows of {folder}/{data}.json as "
            "'total: N'.",
        )
    )
    files = {path: broken, f"{folder}/{data}.json": json.dumps([{key: number} for number in numbers])}
    tests = check(prints={f"python3 {path}": f"total: {sum(numbers)}\n"})
    return Draft(say, files, tests, _here(path, right), PYTHON_IMAGE)


FAMILIES = {
    "mend-function": Family(mend_function),
    "write-function": Family(write_function),
    "mend-script": Family(mend_script),
}
