"""The store under the API: versions, history, owners."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tests.kube.objects import Object
from tests.kube.objects import Objects
from tests.kube.resources import ApiError

SPACE = "openforge"


def config(name: str, **meta: Any) -> Object:
    return {"metadata": {"name": name} | meta}


def label(value: str) -> Any:
    return lambda item: item["metadata"].update(labels={"run": value})


def owner(item: Object) -> list[Object]:
    meta = item["metadata"]
    return [{"apiVersion": "v1", "kind": item["kind"], "name": meta["name"], "uid": meta["uid"]}]


def test_every_change_has_its_version() -> None:
    objects = Objects()
    objects.create("configmaps", config("one"), SPACE)
    objects.change("configmaps", SPACE, "one", label("a"))
    objects.delete("configmaps", SPACE, "one")
    changes = objects.changes("configmaps", 0)
    assert [(change.before is None, change.after is None) for change in changes] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [change.version for change in changes] == sorted({change.version for change in changes})


def test_an_edit_that_alters_nothing_is_no_change() -> None:
    objects = Objects()
    objects.create("configmaps", config("one"), SPACE)
    before = objects.version
    objects.change("configmaps", SPACE, "one", lambda item: None)
    assert objects.version == before


def test_what_was_read_does_not_change_later() -> None:
    objects = Objects()
    objects.create("configmaps", config("one"), SPACE)
    read = objects.get("configmaps", SPACE, "one")
    objects.change("configmaps", SPACE, "one", label("a"))
    assert "labels" not in read["metadata"]
    assert objects.changes("configmaps", 0)[1].before is read


def test_history_is_bounded() -> None:
    objects = Objects(history=3)
    for number in range(5):
        objects.create("configmaps", config(f"c{number}"), SPACE)
    assert len(objects.changes("configmaps", objects.compacted)) == 3
    with pytest.raises(ApiError) as raised:
        objects.changes("configmaps", 1)
    assert raised.value.code == 410


def test_an_owner_takes_what_it_owns_along_through_all_generations() -> None:
    objects = Objects()
    one = objects.create("configmaps", config("one"), SPACE)
    two = objects.create("configmaps", config("two", ownerReferences=owner(one)), SPACE)
    objects.create("configmaps", config("three", ownerReferences=owner(two)), SPACE)
    both = [*owner(one), *owner(objects.create("configmaps", config("other"), SPACE))]
    objects.create("configmaps", config("of-two", ownerReferences=both), SPACE)
    objects.delete("configmaps", SPACE, "one")
    assert [item["metadata"]["name"] for item in objects.all("configmaps")] == ["of-two", "other"]
    objects.delete("configmaps", SPACE, "other")
    assert objects.all("configmaps") == []


def test_what_is_owned_by_nobody_that_exists_is_collected() -> None:
    objects = Objects()
    gone = [{"apiVersion": "v1", "kind": "Secret", "name": "gone", "uid": "of-nobody"}]
    objects.create("configmaps", config("one", ownerReferences=gone), SPACE)
    assert objects.all("configmaps") == []


def test_a_finalizer_keeps_an_object() -> None:
    objects = Objects()
    objects.create("configmaps", config("one", finalizers=["test/keep"]), SPACE)
    objects.delete("configmaps", SPACE, "one")
    assert "deletionTimestamp" in objects.get("configmaps", SPACE, "one")["metadata"]
    objects.change("configmaps", SPACE, "one", lambda item: item["metadata"].update(finalizers=[]))
    assert objects.all("configmaps") == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "label", "delete"]), st.sampled_from("abc"), st.sampled_from("xy"))
)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.integers(0, 10))
def test_a_list_and_the_changes_after_it_are_the_next_list(steps: list[tuple[str, str, str]], at: int) -> None:
    objects, listed, version = Objects(), {}, 0
    for number, (what, name, value) in enumerate(steps):
        if number == at:
            listed = {item["metadata"]["name"]: item for item in objects.all("configmaps")}
            version = objects.version
        try:
            if what == "create":
                objects.create("configmaps", config(name), SPACE)
            elif what == "label":
                objects.change("configmaps", SPACE, name, label(value))
            else:
                objects.delete("configmaps", SPACE, name)
        except ApiError as error:
            assert error.code in (404, 409)
    for change in objects.changes("configmaps", version):
        name = (change.after or change.before or {})["metadata"]["name"]
        assert listed.get(name) == change.before
        listed.pop(name, None)
        if change.after is not None:
            listed[name] = change.after
    assert listed == {item["metadata"]["name"]: item for item in objects.all("configmaps")}
