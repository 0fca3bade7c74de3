"""A proposed task before it is a folder, and the writing of it."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

PYTHON_IMAGE = "python:3.12-slim-bookworm"
"""What a task with Python in it runs in on a cluster; locally it is the host's own."""


class Unusable(ValueError):
    """Nothing can be made of what a proposer came up with; the text says why, `code: detail`."""


@dataclass(frozen=True)
class Draft:
    """One task. `files` are the workspace's and `tests` the verifier's, path → text; `solution` is bash.

    `image` is the container image for a cluster, None for its default one. `misleading`: lines that a tool says and
    that are wrong, none of which is in a true answer.
    """

    instruction: str
    files: Mapping[str, str]
    tests: Mapping[str, str]
    solution: str
    image: str | None = None
    misleading: tuple[str, ...] = ()


@dataclass(frozen=True)
class Labels:
    """What task.toml says besides: where a task belongs and how hard it is meant to be, from 1."""

    kind: str
    split: str
    level: int
    timeouts_s: tuple[float, float] = field(default=(300.0, 20.0))
    """For the agent and for the verifier."""


def check(
    expected: Mapping[str, str] | None = None,
    gone: tuple[str, ...] = (),
    prints: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The `tests` that give 1 if each `expected` file has that text, each `gone` path is away, and each command of
    `prints` prints that text. Spaces at the ends of lines and blank lines do not count."""
    tests = {"test.sh": _TEST}
    tests |= {f"expected/{path}": text for path, text in (expected or {}).items()}
    if gone:
        tests["gone.txt"] = "".join(f"{path}\n" for path in gone)
    for number, (command, text) in enumerate((prints or {}).items()):
        tests |= {f"prints/{number}.sh": f"{command}\n", f"prints/{number}.txt": text}
    return tests


def write(draft: Draft, labels: Labels, folder: Path) -> None:
    """Write the Harbor folder `folder`, whole or not at all; one of that name is replaced."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    (part / "environment").mkdir(parents=True)
    texts = {
        "instruction.md": draft.instruction,
        "task.toml": _toml(draft, labels),
        "solution/solve.sh": f"#!/bin/bash\nset -e\n{draft.solution}",
    }
    texts |= {f"environment/{path}": text for path, text in draft.files.items()}
    texts |= {f"tests/{path}": text for path, text in draft.tests.items()}
    for path, text in texts.items():
        file = part / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if not text or text.endswith("\n") else f"{text}\n")
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def read(folder: Path) -> Draft:
    """The draft of a folder that `write` wrote. Its solution has lost nothing; its labels are in task.toml."""
    texts = {
        part: {
            file.relative_to(folder / part).as_posix(): file.read_text()
            for file in sorted((folder / part).rglob("*"))
            if file.is_file()
        }
        for part in ("environment", "tests")
    }
    return Draft(
        (folder / "instruction.md").read_text(),
        texts["environment"],
        texts["tests"],
        (folder / "solution/solve.sh").read_text().removeprefix("#!/bin/bash\nset -e\n"),
    )


def _toml(draft: Draft, labels: Labels) -> str:
    agent_s, verifier_s = labels.timeouts_s
    image = f"docker_image = {json.dumps(draft.image)}\n" if draft.image else ""
    misleading = f"misleading = {json.dumps(draft.misleading)}\n" if draft.misleading else ""
    return _TOML.format(
        kind=json.dumps(labels.kind),
        split=json.dumps(labels.split),
        level=labels.level,
        agent_s=agent_s,
        verifier_s=verifier_s,
        image=image,
        misleading=misleading,
    )


_TOML = """\
version = "1.0"

[metadata]
kind = {kind}
split = {split}
level = {level}
{misleading}
[verifier]
timeout_sec = {verifier_s}

[agent]
timeout_sec = {agent_s}

[environment]
{image}cpus = 1
memory_mb = 512
storage_mb = 256
"""

_TEST = """\
#!/bin/bash
# 1 if every file below expected/ is in the workspace with the same lines (spaces at their ends and blank lines do not
# count), what gone.txt names is away, and each command in prints/ prints what stands beside it; else 0.
tests=$(cd "$(dirname "$0")" && pwd)
reward=1
lines() { sed -e 's/[[:space:]]*$//' -e '/^$/d' "$1"; }
same() { [ -f "$2" ] && [ "$(lines "$1")" = "$(lines "$2")" ] || reward=0; }
while IFS= read -r -d '' file; do
    same "$file" "./${file#"$tests/expected/"}"
done < <(find "$tests/expected" -type f -print0 2>/dev/null)
if [ -f "$tests/gone.txt" ]; then
    while IFS= read -r path; do [ ! -e "$path" ] || reward=0; done < "$tests/gone.txt"
fi
for command in "$tests"/prints/*.sh; do
    [ -f "$command" ] || continue
    printed=$(mktemp)
    timeout 10 bash "$command" </dev/null >"$printed" 2>/dev/null || reward=0
    same "${command%.sh}.txt" "$printed"
done
echo $reward > "${VERIFIER_REWARD_FILE:-/logs/verifier/reward.txt}"
"""
