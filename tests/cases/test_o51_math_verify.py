"""O51: math-verify answers from any thread, and where it hangs it is killed, alone, and gives no verdict."""

import asyncio
import threading
import time

import psutil
import pytest

from proxy_addons.errors import VerifierError
from tasks.rewards import answers

pytestmark = pytest.mark.timeout(180)

HANGS = "$10^{10^{10^{10}}}$"


def test_o51_from_a_thread() -> None:
    rewards: list[float] = []
    thread = threading.Thread(target=lambda: rewards.append(asyncio.run(answers.math(r"\frac{1}{3}", "1/3"))))
    thread.start()
    thread.join()
    assert rewards == [1.0]


async def test_o51_a_hung_check_is_killed_within_its_bound() -> None:
    start = time.monotonic()
    with pytest.raises(VerifierError, match="did not come to an end in 1 s and was killed"):
        await answers.math(HANGS, "10", timeout_s=1)
    assert time.monotonic() - start < answers.START_S
    assert _children() == []


async def test_o51_sixteen_at_once_two_of_which_hang() -> None:
    asked = [HANGS if n in (3, 9) else r"\frac{1}{3}" for n in range(16)]
    ended = await asyncio.gather(*(answers.math(a, "1/3", timeout_s=20) for a in asked), return_exceptions=True)
    assert [n for n, result in enumerate(ended) if isinstance(result, VerifierError)] == [3, 9]
    assert [result for result in ended if not isinstance(result, VerifierError)] == [1.0] * 14
    assert _children() == []


def _children() -> list[str]:
    ours = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    return [p.name() for p in ours if any(part.endswith("math_child.py") for part in p.cmdline())]
