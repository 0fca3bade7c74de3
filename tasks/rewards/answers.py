"""Compares an answer with the expected one: `exact`, or `math` by math-verify in a process that can be killed.

math-verify can run for ever on a short text, and what it offers against that (an alarm signal) works in a main thread
only (case O51). So each check is a child process without our environment, with its own limit of memory, and the limit
of time is held from outside. Its start, most of it SymPy's, does not count.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL
from asyncio.subprocess import PIPE
from pathlib import Path

from proxy_addons.errors import InfrastructureError
from proxy_addons.errors import VerifierError

START_S = 120.0
CHECK_S = 10.0
MAX_CHARS = 10_000
_CHILD = Path(__file__).with_name("math_child.py")


def exact(answer: str, expected: str) -> float:
    """1.0 if the texts are equal but for white space at the ends and between words, else 0.0."""
    return float(answer.split() == expected.split())


async def math(answer: str, expected: str, timeout_s: float = CHECK_S) -> float:
    """1.0 if math-verify finds `answer` equal to `expected` (LaTeX or plain), else 0.0.

    Raises VerifierError if it does not come to an end or fails, InfrastructureError if it does not start.
    """
    if len(answer) > MAX_CHARS:
        return 0.0  # no answer to a mathematical question, and hours of parsing
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", str(_CHILD)), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={}, start_new_session=True
    )
    assert child.stdin and child.stdout
    try:
        try:
            ready = await asyncio.wait_for(child.stdout.readline(), START_S)
        except TimeoutError:
            ready = b""
        if ready != b"ready\n":
            raise InfrastructureError("math-verify did not start; is it installed? pip install math-verify")
        child.stdin.write(json.dumps([answer, expected]).encode() + b"\n")
        try:
            await child.stdin.drain()
            said = await asyncio.wait_for(child.stdout.readline(), timeout_s)
        except TimeoutError:
            raise VerifierError(f"math-verify did not come to an end in {timeout_s:g} s and was killed") from None
        except ConnectionError:
            said = b""
        if said not in (b"0\n", b"1\n"):
            raise VerifierError(f"math-verify failed: {said.decode().strip() or 'it ended without a word'}")
        return float(said)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
