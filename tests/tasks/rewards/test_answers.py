"""Answers by the real math-verify, in real processes."""

import pytest

from proxy_addons.errors import VerifierError
from tasks.rewards import answers

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(("answer", "expected", "share"), [("a  b\n", "a b", 1), ("A b", "a b", 0), ("", "a", 0)])
def test_exact(answer: str, expected: str, share: float) -> None:
    assert answers.exact(answer, expected) == share


@pytest.mark.parametrize(
    ("answer", "expected", "share"),
    [
        ("0.5", r"\frac{1}{2}", 1),
        (r"So it is $\boxed{x^2 + 1}$.", "$1 + x^2$", 1),
        ("2", "3", 0),
        ("no idea", "3", 0),
        ("1" * (answers.MAX_CHARS + 1), "1", 0),
    ],
)
async def test_math(answer: str, expected: str, share: float) -> None:
    assert await answers.math(answer, expected) == share


async def test_an_expected_answer_that_is_none_is_no_verdict() -> None:
    with pytest.raises(VerifierError, match="the expected answer 'yes, indeed' cannot be parsed"):
        await answers.math("3", "yes, indeed")
