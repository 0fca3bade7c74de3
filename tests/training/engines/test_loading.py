import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from tests.support.policy import save_policy
from training.engines._loading import load_float32


@pytest.fixture
def ties() -> Iterator[object]:
    """transformers' tying of weights, put back if a test spoils it."""
    own = PreTrainedModel.tie_weights
    yield own
    PreTrainedModel.tie_weights = own  # type: ignore[method-assign]


def test_loads_from_several_threads_leave_the_tying_of_weights_alone(tmp_path: Path, ties: object) -> None:
    folder = save_policy(tmp_path / "tied", tied=True)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            models = list(threads.map(load_float32, [folder] * 16))
    finally:
        sys.setswitchinterval(interval)
    assert PreTrainedModel.tie_weights is ties
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in models)
