"""Partial credit: the share of tests that passed, from a report in the verdict folder.

`junit.xml` (pytest's `--junitxml`, and nearly every other runner) or `ctrf.json` (pytest-json-ctrf, as terminal-bench
writes it). A skipped test did not pass: otherwise skipping what is hard would pay.
"""

from typing import Any

import orjson
from junitparser import Error
from junitparser import Failure
from junitparser import JUnitXml
from junitparser import JUnitXmlError
from junitparser import Skipped
from junitparser import TestSuite
from pydantic import BaseModel
from pydantic import ValidationError

from proxy_addons.errors import VerifierError

NAMES = ("junit.xml", "ctrf.json")


def share_passed(name: str, data: bytes) -> float:
    """Passed tests / all tests, 0..1, of a report called `name`.

    Raises VerifierError where it cannot be read or holds no test: that says nothing about the answer.
    """
    passed, total = _junit(data) if name == "junit.xml" else _ctrf(data)
    if not total:
        raise VerifierError(f"{name} holds no test")
    return passed / total


def _junit(data: bytes) -> tuple[int, int]:
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:  # no runner writes one; entities are a way to fill our memory
        raise VerifierError("junit.xml declares a document type; it was not read")
    try:
        report: Any = JUnitXml.fromstring(data)
        cases = [case for suite in _suites(report) for case in suite]
    except (JUnitXmlError, SyntaxError, ValueError, RecursionError) as error:  # ElementTree's error is a SyntaxError
        raise VerifierError(f"junit.xml cannot be read: {error}") from None
    # A result that this parser does not know (a rerun's, say) is no failure in the format.
    bad = sum(any(isinstance(result, Error | Failure | Skipped) for result in case.result) for case in cases)
    return len(cases) - bad, len(cases)


def _suites(report: Any) -> list[TestSuite]:
    if isinstance(report, TestSuite):
        return [report, *(inner for suite in report.testsuites() for inner in _suites(suite))]
    return [inner for suite in report for inner in _suites(suite)]


class _Test(BaseModel):
    status: str


class _Results(BaseModel):
    tests: list[_Test]


class _Ctrf(BaseModel):
    results: _Results


def _ctrf(data: bytes) -> tuple[int, int]:
    try:
        tests = _Ctrf.model_validate(orjson.loads(data)).results.tests
    except (orjson.JSONDecodeError, ValidationError):
        raise VerifierError("ctrf.json is not a CTRF report (results.tests, each with a status)") from None
    return sum(test.status == "passed" for test in tests), len(tests)
