"""The built-in task set: small shell tasks of six kinds, written as Harbor folders by code.

Names, values and folders come from three short lists without a common word: a model of a few million parameters learns
to copy one of twenty words in minutes, and one of a thousand not at all. Half the point is a clean held-out side, so
every pair of a folder and a word is dealt to one split by a fixed rule: no path and no search of a held-out task occurs
in a training task.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = "data docs logs notes store tools parts plans stock local work team"
_NAMES = """
amber birch cedar coral delta eagle falcon grape hazel ivory
jade lemon maple olive pearl quartz raven tulip velvet willow
"""
_VALUES = """
anchor basket camera dinner engine fabric garage hammer island jacket
kettle ladder magnet needle orange pencil rocket saddle ticket window
"""
FOLDERS, NAMES, VALUES = (tuple(text.split()) for text in (_FOLDERS, _NAMES, _VALUES))
KEYS = ("mode", "level", "state", "kind")
SPLITS = ("train", "heldout")


class Draw:
    """Random names of one split; a task never gets the same word twice."""

    def __init__(self, split: str, rng: random.Random) -> None:
        self.pick = rng.choice
        self.folder = rng.choice(FOLDERS)
        self._heldout = split == "heldout"
        self._names = rng.sample(NAMES, len(NAMES))
        self._values = rng.sample(VALUES, len(VALUES))

    def path(self, suffix: str) -> str:
        """A file in `folder` whose name belongs to this split."""
        return f"{self.folder}/{self._dealt(NAMES, self._names)}{suffix}"

    def value(self) -> str:
        return self._values.pop()

    def search(self) -> str:
        """A value that belongs to this split when it is sought in `folder`."""
        return self._dealt(VALUES, self._values)

    def _dealt(self, words: tuple[str, ...], left: list[str]) -> str:
        """Take a word of this split from `left`. One in four belongs to the held-out side."""
        place = FOLDERS.index(self.folder)
        word = next(w for w in left if ((words.index(w) + place) % 4 == 0) == self._heldout)
        left.remove(word)
        return word


@dataclass(frozen=True)
class Sketch:
    """A task before it is written. `files` is the workspace; `condition` is the shell test that earns the reward."""

    instruction: str
    files: dict[str, str]
    condition: str
    solution: str
    commands: int


def read(draw: Draw) -> Sketch:
    """Read a file, then write the word in it."""
    path, word = draw.path(".txt"), draw.value()
    say = draw.pick((f"Write the code in {path} to answer.txt.", f"Read {path} and write its code to answer.txt."))
    files = {path: f"code={word}\n", draw.path(".txt"): f"code={draw.value()}\n"}
    return Sketch(say, files, _answer_is(word), f"cut -d= -f2 {path} > answer.txt", 2)


def find(draw: Draw) -> Sketch:
    """Find the file that contains a word."""
    word, folder = draw.search(), draw.folder
    paths = [draw.path(".txt") for _ in range(3)]
    say = draw.pick(
        (
            f"Which file in {folder} contains '{word}'? Write its path to answer.txt.",
            f"Find the file with '{word}' in {folder} and write its path to answer.txt.",
        )
    )
    files = {path: f"note={draw.value()}\n" for path in paths} | {paths[0]: f"note={word}\n"}
    condition = f'[ "$(basename "$(cat answer.txt)")" = {Path(paths[0]).name} ]'
    return Sketch(say, files, condition, f"grep -rl '{word}' {folder} > answer.txt", 1)


def config(draw: Draw) -> Sketch:
    """Change one value in a configuration file and leave the others alone."""
    path, key, word = draw.path(".ini"), draw.pick(KEYS), draw.value()
    say = draw.pick((f"Set {key}={word} in {path}.", f"Edit {path} so that it has {key}={word}."))
    before = {k: draw.value() for k in KEYS}
    old, new = ("".join(f"{k}={v}\n" for k, v in d.items()) for d in (before, before | {key: word}))
    condition = f'[ "$(cat {path})" = "{new.strip()}" ]'
    return Sketch(say, {path: old}, condition, f"sed -i 's/{key}=.*/{key}={word}/' {path}", 1)


def check(draw: Draw) -> Sketch:
    """Run a check script and do what its message asks for."""
    script, wanted = draw.path(".sh"), f"{draw.folder}/{draw.value()}.txt"
    say = draw.pick((f"Run {script} and do what it says.", f"Run {script} and fix what it reports."))
    body = f"if [ -e {wanted} ]; then echo ok; else echo 'please create {wanted}'; exit 1; fi\n"
    return Sketch(say, {script: body}, f"[ -f {wanted} ]", f"touch {wanted}", 2)


def choose(draw: Draw) -> Sketch:
    """Find out which of several scripts is the right one and run it."""
    purposes = [draw.search(), draw.value(), draw.value()]
    codes = [draw.value() for _ in purposes]
    word, folder = purposes[0], draw.folder
    say = draw.pick(
        (f"Run the script in {folder} that is for '{word}'.", f"One script in {folder} is for '{word}'. Run it.")
    )
    files = {
        draw.path(".sh"): f"# for {purpose}\necho {code} > answer.txt\n"
        for purpose, code in zip(purposes, codes, strict=True)
    }
    return Sketch(say, files, _answer_is(codes[0]), f"sh $(grep -l '{word}' {folder}/*)", 2)


def recover(draw: Draw) -> Sketch:
    """Run a script that fails at first and names the option it needs."""
    script, option, code = draw.path(".sh"), draw.value(), draw.value()
    say = draw.pick((f"Run {script} until it works.", f"Get {script} to run."))
    body = f'if [ "$1" != --{option} ]; then echo "error: use --{option}"; exit 1; fi\necho {code} > answer.txt\n'
    return Sketch(say, {script: body}, _answer_is(code), f"sh {script} --{option}", 2)


KINDS: dict[str, Callable[[Draw], Sketch]] = {
    "read": read,
    "find": find,
    "config": config,
    "check": check,
    "choose": choose,
    "recover": recover,
}


def generate(out: Path, seed: int, train: int, heldout: int) -> None:
    """Write `train` + `heldout` task folders into `out`, the kinds in turn. Equal arguments give equal bytes.

    Raises FileExistsError if a task folder is already there.
    """
    rng = random.Random(seed)
    kinds = tuple(KINDS)
    seen: set[str] = set()
    for number in range(train + heldout):
        split = SPLITS[number >= train]
        kind = kinds[number % len(kinds)]
        sketch = KINDS[kind](Draw(split, rng))
        while sketch.instruction in seen:
            sketch = KINDS[kind](Draw(split, rng))
        seen.add(sketch.instruction)
        _write(out / f"{kind}-{number:04}", kind, split, sketch)


def test_script(condition: str) -> str:
    """The test.sh whose reward is 1 where the shell test `condition` holds."""
    return _TEST.format(condition=condition)


def _answer_is(value: str) -> str:
    return f'[ "$(cat answer.txt)" = "{value}" ]'


def _write(folder: Path, kind: str, split: str, sketch: Sketch) -> None:
    folder.mkdir(parents=True)
    texts = {
        "instruction.md": f"{sketch.instruction}\n",
        "task.toml": _TOML.format(kind=kind, split=split, difficulty="easy" if sketch.commands == 1 else "medium"),
        "tests/test.sh": test_script(sketch.condition),
        "solution/solve.sh": f"#!/bin/sh\n{sketch.solution}\n",
    }
    texts |= {f"environment/{path}": text for path, text in sketch.files.items()}
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


_TOML = """\
version = "1.0"

[metadata]
kind = "{kind}"
split = "{split}"
difficulty = "{difficulty}"

[verifier]
timeout_sec = 10.0

[agent]
timeout_sec = 60.0

[environment]
cpus = 1
memory_mb = 512
storage_mb = 256
"""

_TEST = """\
#!/bin/sh
# Runs in a copy of the workspace; the reward is 1 or 0.
if {condition}; then reward=1; else reward=0; fi
echo $reward > "${{VERIFIER_REWARD_FILE:-/logs/verifier/reward.txt}}"
"""
