"""Makes Harbor folders of the rows of a data set, as one mapping file says (TOML or JSON):

    name = "gsm8k"                        # folders are gsm8k-00000, gsm8k-00001, ...
    instruction = "{question}\\nWrite the number alone to answer.txt."    # columns in braces
    answer = "answer"                     # the column of the expected answer
    answer_pattern = "#### (.*)"          # optional: the part of it that counts
    checker = "math"                      # exact, math, or the column that says which
    kind = "arithmetic"
    split = "train"

Instead of `answer` and `checker`, `test` names a column with the text of a tests/test.sh. The rows come from a file
(.jsonl, .json, .csv, .parquet) or from `datasets.load_dataset` by name and split.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError
from pydantic import model_validator

from proxy_addons.errors import ConfigError

_BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_CHECKERS = ("exact", "math")
_COLUMN = re.compile(r"\{([^{}\s]+)\}")
_WORD = r"[a-z0-9][a-z0-9_-]{0,29}"


class Columns(BaseModel):
    """Which column of a data set is what."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,29}$")
    instruction: str = Field(min_length=1)
    answer: str | None = None
    answer_pattern: re.Pattern[str] | None = None
    checker: str = "exact"
    test: str | None = None
    kind: str = Field(default="other", pattern=f"^{_WORD}$")
    split: str = Field(default="train", pattern=f"^{_WORD}$")
    agent_timeout_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    dataset_split: str = "train"

    @model_validator(mode="after")
    def _check(self) -> "Columns":
        if (self.answer is None) == (self.test is None):
            raise ValueError("name either the column of the answer or the column of the test")
        if self.answer_pattern and self.answer_pattern.groups != 1:
            raise ValueError("answer_pattern must have one group, which is the answer")
        return self


def read_mapping(file: Path) -> Columns:
    """The mapping in a TOML or JSON file. Raises ConfigError, one line per problem."""
    try:
        text = file.read_text()
        data = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
        return Columns.model_validate(data)
    except ValidationError as error:
        problems = [f"{file}: {'.'.join(map(str, e['loc'])) or 'mapping'}: {e['msg']}" for e in error.errors()]
        raise ConfigError("\n".join(problems)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None


def rows(source: str, mapping: Columns) -> Iterable[Mapping[str, Any]]:
    """The rows of a file or a named data set, read as they are asked for. Raises ConfigError."""
    from datasets import load_dataset

    file = Path(source)
    try:
        if file.is_file():
            if file.suffix not in _BUILDERS:
                raise ConfigError(f"{source}: a data file ends in one of {', '.join(_BUILDERS)}")
            yield from load_dataset(_BUILDERS[file.suffix], data_files=str(file), split="train", streaming=True)
        else:
            yield from load_dataset(source, split=mapping.dataset_split, streaming=True)
    except (OSError, ValueError, RuntimeError) as error:  # what `datasets` raises for what it cannot find or read
        first = str(error).strip().splitlines()[:1]
        raise ConfigError(f"data set {source}: {first[0] if first else type(error).__name__}") from None


def import_rows(data: Iterable[Mapping[str, Any]], mapping: Columns, out: Path) -> int:
    """Write one task folder a row into `out`, which must not exist; returns how many.

    Raises ConfigError with one line per row that cannot be a task; nothing is written then.
    """
    if out.exists():
        raise ConfigError(f"{out} exists; name a new folder")
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    problems, count = [], 0
    for number, row in enumerate(data):
        try:
            files = _task(row, mapping)
        except ValueError as error:
            problems.append(f"row {number}: {error}")
            continue
        count += 1
        _write(part / f"{mapping.name}-{number:05}", files)
    if problems or not count:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigError("\n".join(problems) or "the data set has no rows")
    part.rename(out)
    return count


def _task(row: Mapping[str, Any], mapping: Columns) -> dict[str, str]:
    """Path → text of one task. Raises ValueError."""
    instruction = _COLUMN.sub(lambda match: _column(row, match[1]), mapping.instruction).strip()
    toml = _TOML.format(kind=mapping.kind, split=mapping.split, timeout=mapping.agent_timeout_s)
    if mapping.test is not None:
        return {"instruction.md": instruction, "task.toml": toml, "tests/test.sh": _column(row, mapping.test)}
    assert mapping.answer is not None
    answer = _column(row, mapping.answer)
    if mapping.answer_pattern:
        found = mapping.answer_pattern.search(answer)
        if not found:
            raise ValueError(f"answer_pattern does not match the answer {answer[:60]!r}")
        answer = found[1].strip()
    checker = mapping.checker if mapping.checker in _CHECKERS else _column(row, mapping.checker)
    if checker not in _CHECKERS:
        raise ValueError(f"checker {checker[:60]!r} is not one of {', '.join(_CHECKERS)}")
    return {
        "instruction.md": instruction,
        "task.toml": f'{toml}\n[metadata.reward]\noutcome = "{checker}"\n',
        "tests/test.sh": _EXACT if checker == "exact" else _MATH,
        "tests/expected.txt": answer,
        "solution/answer.txt": answer,
        "solution/solve.sh": '#!/bin/sh\ncp "$(dirname "$0")/answer.txt" answer.txt\n',
    }


def _column(row: Mapping[str, Any], name: str) -> str:
    if row.get(name) is None:
        raise ValueError(f"has no column {name!r}; it has {', '.join(sorted(row))}")
    text = str(row[name]).strip()
    if not text:
        raise ValueError(f"column {name!r} is empty")
    return text


def _write(folder: Path, files: Mapping[str, str]) -> None:
    (folder / "environment").mkdir(parents=True)
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text.rstrip("\n") + "\n")


_TOML = """\
version = "1.0"

[metadata]
kind = "{kind}"
split = "{split}"

[agent]
timeout_sec = {timeout}
"""

# For other tools that read Harbor folders: OpenForge compares such answers itself (`metadata.reward.outcome`).
_EXACT = """\
#!/bin/bash
here=$(dirname "$0")
words() { tr -s '[:space:]' '\\n' < "$1" | sed '/^$/d'; }
if [ -f answer.txt ] && [ "$(words answer.txt)" = "$(words "$here/expected.txt")" ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""

_MATH = """\
#!/bin/bash
pip install --quiet 'math-verify[antlr4_13_2]'
python3 - "$(dirname "$0")/expected.txt" answer.txt > /logs/verifier/reward.txt <<'END'
import sys
from pathlib import Path

from math_verify import parse, verify

expected, answer = (Path(name).read_text() if Path(name).is_file() else "" for name in sys.argv[1:])
print(int(verify(parse(expected), parse(answer))))
END
"""
