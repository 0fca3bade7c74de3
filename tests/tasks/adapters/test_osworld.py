import json
from pathlib import Path
from typing import Any

import pytest

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import osworld
from tasks.adapters.osworld import Evaluator

EXAMPLE: dict[str, Any] = {
    "id": "11112222-3333-4444-5555-666677778888",
    "snapshot": "libreoffice_calc",
    "instruction": "Add up the second column.",
    "source": "https://sheets.example/forum",
    "config": [{"type": "open", "parameters": {"path": "/home/user/a.xlsx"}}],
    "related_apps": ["libreoffice_calc"],
    "evaluator": {"func": "compare_table", "result": {"type": "vm_file"}, "expected": {"type": "rule"}},
    "proxy": False,
}


def write(folder: Path, *examples: dict[str, Any], named: list[str] | None = None) -> Path:
    for example in examples:
        file = folder / "examples/libreoffice_calc" / f"{example['id']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(example))
    if named is not None:
        (folder / "test_all.json").write_text(json.dumps({"libreoffice_calc": named}))
    return folder


def test_reads_the_tasks_of_the_index(tmp_path: Path) -> None:
    write(tmp_path, EXAMPLE, EXAMPLE | {"id": "other", "proxy": True}, named=[EXAMPLE["id"]])
    (found,) = osworld.read(tmp_path)
    assert found.kind == "libreoffice_calc"
    assert found.instruction == "Add up the second column."
    assert [str(need) for need in found.missing] == ["desktop libreoffice_calc"]
    (tmp_path / "test_all.json").unlink()
    assert [str(need) for item in osworld.read(tmp_path) for need in item.needs] == [
        "desktop libreoffice_calc",
        "desktop libreoffice_calc",
        "site sheets.example",
    ]


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"id": "bad", "instruction": "x", "snapshot": "os"}, named=["bad", "gone"])
    with pytest.raises(ConfigError) as caught:
        osworld.read(tmp_path)
    bad, gone = str(caught.value).splitlines()
    assert bad.startswith("examples/libreoffice_calc/bad.json: evaluator: ")
    assert gone == "examples/libreoffice_calc/gone.json: is named in test_all.json and not there"


@pytest.mark.parametrize(
    ("func", "conj", "results", "gave_up", "reward"),
    [
        ("f", "and", [1.0], False, 1.0),
        ("f", "and", [0.4], False, 0.4),
        ("f", "and", [1.0], True, 0.0),
        (["f", "g"], "and", [1.0, 0.5], False, 0.75),
        (["f", "g"], "and", [1.0, 0.0], False, 0.0),
        (["f", "g"], "or", [0.3, 0.5], False, 0.5),
        (["f", "g"], "or", [0.0, 1.0], False, 1.0),
        ("infeasible", "and", [], True, 1.0),
        ("infeasible", "and", [], False, 0.0),
    ],
)
def test_the_score(func: Any, conj: Any, results: list[float], gave_up: bool, reward: float) -> None:
    assert osworld.score(Evaluator(func=func, conj=conj), results, gave_up) == reward


@pytest.mark.parametrize(("func", "results"), [("f", []), (["f", "g"], [1.0]), ("f", [1.0, 1.0])])
def test_a_missing_result_is_no_verdict(func: Any, results: list[float]) -> None:
    with pytest.raises(VerifierError):
        osworld.score(Evaluator(func=func), results, False)
