from pathlib import Path

import pytest

from tests.support.toy_model import make_toy_model


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy"))
