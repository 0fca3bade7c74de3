"""Reports as real runners write them; the JUnit one is pytest's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy_addons.errors import VerifierError
from tasks.rewards.reports import share_passed

TESTS = """
import pytest

def test_passes(): pass
def test_passes_too(): pass
def test_fails(): assert False
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
@pytest.mark.skip
def test_skipped(): pass
"""
SUITE = '<testsuite tests="1"><testcase name="a"/></testsuite>'


def test_pytests_own_report(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", "--junitxml=junit.xml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert share_passed("junit.xml", (tmp_path / "junit.xml").read_bytes()) == 2 / 5


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (SUITE, 1.0),
        (f"<testsuites>{SUITE}{SUITE.replace('/>', '><failure/></testcase>')}</testsuites>", 0.5),
        (f"<testsuites><testsuite>{SUITE}</testsuite></testsuites>", 1.0),
    ],
)
def test_shapes_of_junit(text: str, share: float) -> None:
    assert share_passed("junit.xml", text.encode()) == share


def test_what_a_report_counts_itself_is_not_believed() -> None:
    text = '<testsuite tests="9" failures="0"><testcase name="a"><failure/></testcase></testsuite>'
    assert share_passed("junit.xml", text.encode()) == 0.0


def test_ctrf() -> None:
    text = b'{"results": {"summary": {}, "tests": [{"name": "a", "status": "passed"}, {"status": "skipped"}]}}'
    assert share_passed("ctrf.json", text) == 0.5


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("junit.xml", "<testsuite>", "junit.xml cannot be read"),
        ("junit.xml", "", "junit.xml cannot be read"),
        ("junit.xml", "<html/>", "junit.xml cannot be read"),
        ("junit.xml", "<testsuite/>", "junit.xml holds no test"),
        ("junit.xml", f'<!DOCTYPE t [<!ENTITY a "b">]>{SUITE}', "declares a document type"),
        ("ctrf.json", "{", "ctrf.json is not a CTRF report"),
        ("ctrf.json", '{"results": {"tests": [1]}}', "ctrf.json is not a CTRF report"),
        ("ctrf.json", '{"results": {"tests": []}}', "ctrf.json holds no test"),
    ],
)
def test_no_report_is_no_verdict(name: str, text: str, reason: str) -> None:
    with pytest.raises(VerifierError, match=reason):
        share_passed(name, text.encode())
