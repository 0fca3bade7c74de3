"""docs/training.md: every option is told as it is, and what it names is there."""

import re
from typing import get_args

from flows.config import TrainingConfig
from tasks.run import ROOT
from training.job import Advantage
from training.job import KlPenalty
from training.job import Loss
from training.job import Weighting

TEXT = (ROOT / "docs" / "training.md").read_text()


def test_the_table_of_options_is_that_of_the_configuration() -> None:
    table = re.findall(r"^\| `(\w+)` \| (?:–|`(.*?)`) \| (.*) \|$", TEXT.split("## Options")[1], re.M)
    assert table == [
        (name, _shown(field.get_default(call_default_factory=True)), field.description)
        for name, field in TrainingConfig.model_fields.items()
    ]


def test_every_choice_with_a_formula_is_named() -> None:
    choices = [*get_args(Advantage), *get_args(Loss), *get_args(Weighting)]
    choices += [name for name in get_args(KlPenalty) if not name.endswith("+")]
    assert [name for name in choices if f"`{name}`" not in TEXT.split("## Options")[0]] == []


def test_the_files_are_there() -> None:
    named = set(re.findall(r"(?<![/\w])((?:training|tests|docs)/[\w/]+\.(?:py|md))", TEXT))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def _shown(value: object) -> str:
    return "" if value is None else ", ".join(value) if isinstance(value, list) else str(value)
