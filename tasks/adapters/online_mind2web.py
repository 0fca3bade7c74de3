"""Online-Mind2Web: tasks on live web sites (github.com/OSU-NLP-Group/Online-Mind2Web).

`Online_Mind2Web.json` is a list of tasks: `task_id`, `confirmed_task`, `website`, `reference_length` (a person's steps)
and `level`. It needs its sites, a browser and WebJudge: a judge names the task's key points, rates every screenshot
from 1 to 5, and gives its verdict on those with at least 3, the key points and the actions.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import AliasChoices
from pydantic import BaseModel
from pydantic import Field

from proxy_addons.errors import ConfigError
from proxy_addons.errors import VerifierError
from tasks.adapters import Item
from tasks.adapters import Problems
from tasks.adapters import judge
from tasks.adapters import task_id
from tasks.adapters import unique
from tasks.adapters.webvoyager import BROWSER
from tasks.adapters.webvoyager import site

NAME = "online_mind2web"
ABOUT = "tasks on 136 live web sites"
GIVE = "Online_Mind2Web.json or its folder (Hugging Face: osunlp/Online-Mind2Web)"

THRESHOLD = 3
MAX_IMAGES = 50
_STATUS = re.compile(r"status\W*:\W*(success|failure)\b", re.I)
_SCORE = re.compile(r"[1-5]")


class Errand(BaseModel):
    """One entry of Online_Mind2Web.json."""

    task_id: str
    task: str = Field(validation_alias=AliasChoices("confirmed_task", "task_description"))
    website: str
    reference_length: int | None = None
    level: str | None = None


def read(folder: Path) -> list[Item]:
    """Its tasks. Raises ConfigError."""
    file = folder if folder.is_file() else folder / "Online_Mind2Web.json"
    try:
        data = json.loads(file.read_text())
    except OSError:
        raise ConfigError(f"{NAME}: no Online_Mind2Web.json in {folder}; give {GIVE}") from None
    except ValueError as error:
        raise ConfigError(f"{file}: is no JSON: {error}") from None
    if not isinstance(data, list):
        raise ConfigError(f"{file}: is not a list of tasks")
    problems = Problems()
    found = [problems.parse(f"{file.name}: task {number}", Errand, entry) for number, entry in enumerate(data)]
    problems.raise_any(len(found), file, "tasks")
    return unique(_item(errand) for errand in found if errand)


def _item(errand: Errand) -> Item:
    return Item(
        id=task_id(errand.task_id),
        instruction=f"{errand.task}\nStart at {errand.website}",
        kind=errand.level or "other",
        needs=(BROWSER, site(errand.website), judge.need("that sees screenshots")),
        record=errand,
    )


def key_screenshots(ratings: Sequence[str]) -> list[int]:
    """Which screenshots the verdict is on, by what the judge said of each: rated at least 3, the first 50.

    The rating is the first digit from 1 to 5 after the word Score (`methods/webjudge_online_mind2web.py`). Raises
    VerifierError where a screenshot has none.
    """
    kept = []
    for number, said in enumerate(ratings):
        rating = _SCORE.search(said.partition("Score")[2])
        if rating is None:
            raise VerifierError(f"the judge gave screenshot {number} no score from 1 to 5")
        if int(rating[0]) >= THRESHOLD:
            kept.append(number)
    return kept[:MAX_IMAGES]


def score(said: str) -> float:
    """1.0 or 0.0 of the judge's verdict, its last `Status: success` or `Status: failure` (`extract_predication`).

    Raises VerifierError where it has none; the published code counts that as a failure.
    """
    found = _STATUS.findall(said)
    if not found:
        raise VerifierError("the judge gave no status, neither success nor failure")
    return float(found[-1].lower() == "success")
