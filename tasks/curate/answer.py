"""What a model's proposal must look like. It is untrusted: only what is described here gets into a task folder."""

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError

from tasks.curate.draft import PYTHON_IMAGE
from tasks.curate.draft import Draft
from tasks.curate.draft import Unusable

MAX_PATH, MAX_TEXT, MAX_FILES = 120, 100_000, 50
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.S)
_PATH = re.compile(r"[A-Za-z0-9_.@+-]+(/[A-Za-z0-9_.@+-]+)*")


def _is_path(value: str) -> str:
    if not _PATH.fullmatch(value) or any(part in (".", "..", ".git") for part in PurePosixPath(value).parts):
        raise ValueError("write a plain path below the workspace, of letters, digits and _.@+-")
    return value


def _is_text(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    return value


_Path = Annotated[str, Field(max_length=MAX_PATH), AfterValidator(_is_path)]
_Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(_is_text)]
_Script = Annotated[_Text, Field(min_length=1)]


class Answer(BaseModel):
    """One proposed task: the files of its workspace, what is asked, and bash for solving and for scoring it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    instruction: _Script
    files: dict[_Path, _Text] = Field(max_length=MAX_FILES)
    solution: _Script
    test: _Script


def read(text: str) -> Draft:
    """The draft in a model's answer: one JSON object, alone or in a code fence. Raises Unusable with one reason."""
    fenced = _FENCE.fullmatch(text)
    try:
        answer = Answer.model_validate_json(fenced[1] if fenced else text)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part)[:40] for part in problem["loc"])
        raise Unusable(f"unreadable: {where or 'the answer'}: {problem['msg'][:200]}") from None
    inside = set(answer.files)
    for path in inside:
        if above := inside.intersection(str(parent) for parent in PurePosixPath(path).parents):
            raise Unusable(f"unreadable: files: {above.pop()} is a file and a folder")
    return Draft(answer.instruction, answer.files, {"test.sh": answer.test}, answer.solution, PYTHON_IMAGE)
