"""The registry of findings against the sources and the documentation."""

import re
from pathlib import Path

import pytest

from proxy_addons import findings
from proxy_addons.findings import FINDINGS
from proxy_addons.findings import by_severity
from proxy_addons.findings import fatal
from proxy_addons.findings import lookup

ROOT = Path(findings.__file__).parents[1]


def test_every_code_of_the_registry_is_emitted_somewhere() -> None:
    """That every emitted code is in the registry is asserted wherever a test ends a rollout (`Recording.end`)."""
    others = [ROOT / "tasks" / name for name in ("verify.py", "deadline.py", "beside.py")]
    files = [*(ROOT / "proxy_addons").rglob("*.py"), *others]
    text = "\n".join(file.read_text() for file in files if file.name != "findings.py")
    assert [code for code in FINDINGS if not re.search(rf'"{code}[":]', text)] == []


def test_the_documentation_has_the_table() -> None:
    text = (ROOT / "docs/proxy.md").read_text()
    lines = [f"| `{code}` | {f.severity} | {f.scope} | {f.meaning} |" for code, f in FINDINGS.items()]
    rows = [line for line in text.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    assert rows == lines


def test_meanings_are_sentences() -> None:
    assert all(f.meaning[0].isupper() and f.meaning.endswith(".") for f in FINDINGS.values())


def test_a_detail_shares_the_entry_and_an_unknown_code_stops_nothing() -> None:
    assert lookup("unknown_block:video") is FINDINGS["unknown_block"]
    assert lookup("of_tomorrow:x").severity == "warning"
    assert fatal("call") == {
        "ids_missing",
        "logprobs_misaligned",
        "logprob_not_finite",
        "certain_tokens",
        "weight_version_changed",
        "prompt_ids_differ",
    }
    assert fatal("chain") == {"control_token_in_content"}
    assert fatal("rollout") == set()


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({}, {}),
        (
            {"truncated": 2, "unknown_block:a": 1, "unknown_block:b": 2},
            {"warning": {"unknown_block": 3, "truncated": 2}},
        ),
        (
            {"not_delivered": 1, "ids_missing": 3, "of_tomorrow": 1},
            {"fatal": {"ids_missing": 3}, "warning": {"of_tomorrow": 1}, "info": {"not_delivered": 1}},
        ),
    ],
)
def test_counts_by_severity_with_the_worst_first(counts: dict[str, int], said: dict[str, dict[str, int]]) -> None:
    assert by_severity(counts) == said
    assert list(by_severity(counts)) == list(said)
    assert [list(own) for own in by_severity(counts).values()] == [list(own) for own in said.values()]
