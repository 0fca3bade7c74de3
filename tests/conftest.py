from collections.abc import Iterator

import pytest


def _patience(item: pytest.Item) -> float:
    """The seconds that a test may take by a mark of its own."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that may take longest come first: begun last, one would run alone while other workers have nothing."""
    longest: dict[str, float] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        longest[file] = max(longest.get(file, 0.0), _patience(item))
    items.sort(key=lambda item: -longest[item.nodeid.partition("::")[0]])


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A real Prefect server for all of a session's flows: to start one takes 11 s of a core."""
    from prefect.testing.utilities import prefect_test_harness  # the proxy's environment has none

    with prefect_test_harness(server_startup_timeout=120):
        yield
