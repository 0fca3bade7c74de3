"""One comparison by math-verify, as a process of its own: `ready` when loaded, then a JSON line in and 0 or 1 out."""

import json
import logging
import resource
import sys

from math_verify import ExprExtractionConfig
from math_verify import LatexExtractionConfig
from math_verify import parse
from math_verify import verify

_MEMORY = 2 << 30


def main() -> None:
    """Compare one pair. An expected answer that cannot be parsed is the task's fault, and said."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    print("ready", flush=True)
    answer, expected = json.loads(sys.stdin.readline())
    how = (LatexExtractionConfig(), ExprExtractionConfig())
    # None: no alarm signals; whoever started this process holds the time.
    wanted = parse(_as_latex(expected), how, parsing_timeout=None)
    if not wanted:
        print(f"the expected answer {expected[:60]!r} cannot be parsed", flush=True)
        return
    said = parse(_as_latex(answer), how, parsing_timeout=None)
    print(int(verify(wanted, said, timeout_seconds=None)), flush=True)


def _as_latex(text: str) -> str:
    """LaTeX is only looked for between dollars or in a box, and an answer file often holds it bare."""
    return text if "$" in text or "\\boxed" in text or "\\" not in text else f"${text.strip()}$"


if __name__ == "__main__":
    main()
