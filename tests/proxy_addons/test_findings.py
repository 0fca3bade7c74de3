"""The registry against the sources: every code that is emitted is in it, and nothing that is not."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy_addons import findings
from proxy_addons.conversation import Problem
from proxy_addons.findings import FINDINGS
from proxy_addons.findings import by_severity
from proxy_addons.findings import fatal
from proxy_addons.findings import lookup

ROOT = Path(findings.__file__).parents[1]
NAMES = ("findings", "notes")


def texts(node: ast.AST) -> Iterator[str]:
    """The codes in an expression, without their details."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
            yield part.value.split(":")[0]


def name_of(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def emitted(file: Path) -> Iterator[str]:
    """The codes that a module emits: what it puts in a list of findings, gives to `_failed` or `_note`, or yields."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="append", value=value), args=[code]) if name_of(value) in NAMES:
                yield next(texts(code))
            case ast.Call(func=ast.Name(id="_failed" | "_note"), args=[_, code, *_]):
                yield from texts(code)
            case ast.AugAssign(target=target, value=ast.ListComp(elt=code)) if name_of(target) in NAMES:
                yield next(texts(code))
            case ast.Assign(targets=[ast.Name(id="findings")], value=ast.IfExp() as value):
                yield from texts(value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "findings" and not isinstance(value, ast.Call):
                        yield from texts(value)
            case ast.FunctionDef(name="_forged"):
                yield from (code for part in ast.walk(node) if isinstance(part, ast.Return) for code in texts(part))
            case ast.Yield(value=ast.Constant() | ast.JoinedStr() as code) if file.name in ("review.py", "verify.py"):
                yield next(texts(code))


def test_every_code_that_is_emitted_is_in_the_registry_and_no_other() -> None:
    files = [*(ROOT / "proxy_addons").rglob("*.py"), ROOT / "tasks/verify.py"]
    found = {code for file in files if file.name != "findings.py" for code in emitted(file)}
    assert found | set(Problem.STATUS) == set(FINDINGS)


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
