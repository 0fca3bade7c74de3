"""MCP-Atlas: questions that take several tools of 36 MCP servers (github.com/scaleapi/mcp-atlas).

A row has `TASK` (its id), `PROMPT`, `ENABLED_TOOLS` and `GTFA_CLAIMS` (what a full answer says, claim by claim); the
rows are the data set's parquet file, or a CSV or JSONL file with these columns. It needs its servers, which its own
container image brings, 16 of them with keys of their services, and a judge.
"""

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import Item
from tasks.adapters import Need
from tasks.adapters import Problems
from tasks.adapters import judge
from tasks.adapters import task_id
from tasks.adapters import unique
from tasks.importing import Columns
from tasks.importing import rows

NAME = "mcp_atlas"
ABOUT = "questions that take the tools of 36 MCP servers"
GIVE = "its parquet, CSV or JSONL file (Hugging Face: ScaleAI/MCP-Atlas)"

PASS = 0.75
Outcome = Literal["fulfilled", "partially_fulfilled", "not_fulfilled"]
_WORTH: dict[str, float] = {"fulfilled": 1.0, "partially_fulfilled": 0.5, "not_fulfilled": 0.0}
_SERVERS = "its agent-environment container with the MCP servers, beside the sandbox; not here"
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")


class Row(BaseModel):
    """A row. `claims` may be empty: such a row cannot be scored."""

    model_config = ConfigDict(arbitrary_types_allowed=False)

    task: str = Field(validation_alias="TASK", min_length=1)
    prompt: str = Field(validation_alias="PROMPT", min_length=1)
    tools: list[str]
    claims: list[str]


def read(folder: Path) -> list[Item]:
    """Its rows. Raises ConfigError."""
    found = (
        [folder] if folder.is_file() else sorted(p for e in ("parquet", "csv", "jsonl") for p in folder.glob(f"*.{e}"))
    )
    if len(found) != 1:
        raise ConfigError(f"{NAME}: {folder} holds {len(found)} data files; give {GIVE}")
    problems, items = Problems(), []
    for number, data in enumerate(rows(str(found[0]), Columns(name="rows", instruction="{PROMPT}", answer="TASK"))):
        lists = {"tools": _names(data.get("ENABLED_TOOLS")), "claims": claims(data.get("GTFA_CLAIMS"))}
        row = problems.parse(f"{found[0].name}: row {number}", Row, {**data, **lists})
        if row is not None:
            items.append(_item(row))
    problems.raise_any(len(items), found[0], "rows")
    return unique(items)


def _item(row: Row) -> Item:
    needs = [Need("tools", name, _SERVERS) for name in row.tools] or [Need("tools", "all servers'", _SERVERS)]
    if not row.claims:
        needs.append(Need("claims", "", "the row has none, so nothing can be scored"))
    return Item(task_id(row.task), row.prompt, "tools", (*needs, judge.need()), row)


def claims(text: Any) -> list[str]:
    """The claims of a `GTFA_CLAIMS`: a list, or one written as JSON or Python, or a line each."""
    written = text if isinstance(text, str) else ""  # an empty cell of a CSV file is no text at all
    found = text if isinstance(text, list) else _listed(written)
    if found is None:
        found = written.splitlines()
    cleaned = (_BULLET.sub("", str(claim)).strip() for claim in found)
    return [claim for claim in cleaned if len(claim) > 3]


def _listed(text: str) -> list[Any] | None:
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError):
            continue
        if isinstance(value, list):
            return value
    return None


def _names(text: Any) -> list[str]:
    """The tools' names; an entry may be the name, or an object with it."""
    found = text if isinstance(text, list) else _listed(text if isinstance(text, str) else "") or []
    return [str(entry["name"] if isinstance(entry, dict) and "name" in entry else entry) for entry in found]


def score(outcomes: Sequence[Outcome]) -> float:
    """Coverage: the mean over the claims of what the judge said of each (`services/scoring/score_claims.py`).

    `fulfilled` 1, `partially_fulfilled` 0.5, `not_fulfilled` 0. Raises VerifierError if there is no claim or an outcome
    is none of these; the published code counts a claim that the judge failed on as not fulfilled.
    """
    unknown = [outcome for outcome in outcomes if outcome not in _WORTH]
    if unknown or not outcomes:
        raise VerifierError(f"the judge said {unknown[0]!r} of a claim" if unknown else "there is no claim to score")
    return sum(_WORTH[outcome] for outcome in outcomes) / len(outcomes)


def passed(coverage: float) -> bool:
    """Whether a coverage counts as a pass: at least 0.75."""
    return coverage >= PASS
