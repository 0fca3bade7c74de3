from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.toy_model import make_toy_model


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def tokenizer(toy_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(toy_model))
