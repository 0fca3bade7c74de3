"""A training process: from JOB.json to an exit code, and how it hands over its result."""

import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from typing import TypeVar

from pydantic import BaseModel
from pydantic import ValidationError
from transformers.utils import logging

from proxy_addons.errors import OpenForgeError
from training.job import EXIT_CODES

Job = TypeVar("Job", bound=BaseModel)


def run_job(arguments: list[str], kind: type[Job], work: Callable[[Job], Any]) -> int:
    """Do the job in the file that `arguments` names and return the exit code (`job.EXIT_CODES`).

    A failure of our own family is one line on stderr, class first; any other is a traceback from Python, exit code 1.
    """
    _quiet()
    if len(arguments) != 1:
        return _fail("ConfigError", "give one argument, the job file")
    try:
        work(kind.model_validate_json(Path(arguments[0]).read_text()))
    except (OSError, ValidationError) as error:
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            return _fail("ConfigError", f"{arguments[0]}: {'.'.join(map(str, first['loc']))}: {first['msg']}")
        return _fail("InfrastructureError", str(error))
    except OpenForgeError as error:
        return _fail(error.error_class, str(error))
    return 0


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write `result` so that readers see all of it or nothing; a number that JSON cannot hold becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(_finite(result), indent=1, allow_nan=False))
    os.replace(temporary, path)


def _quiet() -> None:
    """Keep progress bars and veRL's notes on engines that are not installed out of the log."""
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", message=".* engine is not available")
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _fail(error_class: str, message: str) -> int:
    print(f"{error_class}: {message}", file=sys.stderr)
    return EXIT_CODES.get(error_class, 1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
