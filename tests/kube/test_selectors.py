import pytest

from tests.kube import selectors
from tests.kube.objects import Object
from tests.kube.resources import ApiError

POD: Object = {
    "metadata": {"name": "one", "labels": {"run": "a", "rollout": "a-e001", "empty": ""}},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("run=a", True),
        ("run==a,rollout=a-e001", True),
        ("run=a,rollout=b", False),
        ("run!=a", False),
        ("none!=a", True),
        ("run in (b, a),rollout", True),
        ("run in (b)", False),
        ("run notin (b,c)", True),
        ("run notin (a)", False),
        ("none notin (a)", True),
        ("run", True),
        ("!run", False),
        ("!none", True),
        ("empty=", True),
    ],
)
def test_labels(text: str, expected: bool) -> None:
    assert selectors.labels(text)(POD) is expected


def test_an_object_without_labels() -> None:
    assert selectors.labels("!run")({"metadata": {}})
    assert not selectors.labels("run=a")({"metadata": {"labels": None}})


@pytest.mark.parametrize("text", ["run ~ a", "run in a", "=a"])
def test_a_selector_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ApiError):
        selectors.labels(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metadata.name=one", True),
        ("metadata.name=one,status.phase!=Running", False),
        ("status.phase!=Failed", True),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
    ],
)
def test_fields(text: str, expected: bool) -> None:
    assert selectors.fields(text)(POD) is expected
