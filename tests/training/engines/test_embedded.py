import asyncio
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient
from aiohttp.test_utils import TestServer

from proxy_addons.errors import ConfigError
from tests.training.engines.models import VOCAB
from tests.training.engines.models import ids
from tests.training.engines.models import save_model
from training.engines._decoder import Decoder
from training.engines._decoder import load_model
from training.engines._decoder import stop_tokens
from training.engines._http import Server
from training.engines._http import _spans
from training.engines.embedded import Embedded

GENERATE = "/inference/v1/generate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "one", 1)


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return Decoder(folder, "cpu", max_running=4, cache_tokens=4096)


@pytest_asyncio.fixture
async def http(decoder: Decoder, folder: Path) -> Any:
    await asyncio.wrap_future(decoder.forget_prefixes())
    async with TestClient(TestServer(Server(Embedded(decoder), folder, 256).app())) as client:
        yield client


def body(**sampling: Any) -> dict[str, Any]:
    return {"model": "policy", "token_ids": ids(10, 1), "sampling_params": {"max_tokens": 4, **sampling}}


async def test_answer_has_vllms_fields(http: TestClient) -> None:
    answer = await (await http.post(GENERATE, json=body(logprobs=0, seed=1))).json()
    choice = answer["choices"][0]
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": 4}]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token_ids": [1, VOCAB]}, "vocabulary"),
        ({"token_ids": [-1]}, "vocabulary"),
        ({"token_ids": []}, "token_ids"),
        ({"stream": True}, "stream"),
        ({"model": "other"}, "model"),
        ({"sampling_params": {"top_k": 5}}, "top_k"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(http: TestClient, change: dict[str, Any], said: str) -> None:
    answer = await http.post(GENERATE, json={**body(), **change})
    assert answer.status == 400
    assert said in (await answer.json())["error"]["message"]


async def test_bad_reload_path_keeps_the_old_weights(http: TestClient, tmp_path: Path) -> None:
    before = await (await http.post(GENERATE, json=body(temperature=0, logprobs=0))).json()
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "nowhere")}}
    assert (await http.post("/collective_rpc", json=rpc)).status == 400
    after = await (await http.post(GENERATE, json=body(temperature=0, logprobs=0))).json()
    old, new = before["choices"][0], after["choices"][0]
    assert old["token_ids"] == new["token_ids"]
    for a, b in zip(old["logprobs"]["content"], new["logprobs"]["content"], strict=True):
        assert a["logprob"] == pytest.approx(b["logprob"], abs=1e-4)


async def test_abort_ends_what_runs_and_nothing_starts_until_resume(http: TestClient) -> None:
    await http.post("/pause", params={"mode": "abort"})
    assert await (await http.get("/is_paused")).json() == {"is_paused": True}
    await http.post("/resume")
    assert (await http.post(GENERATE, json=body())).status == 200


def test_versions_become_spans() -> None:
    assert _spans(["3", "3", "4"]) == [
        {"version": "3", "start": 0, "end": 2},
        {"version": "4", "start": 2, "end": 3},
    ]


def test_own_end_tokens_come_from_the_folder(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder, "cpu")
    assert stop_tokens(folder, model.config) == frozenset()
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert stop_tokens(tmp_path, model.config) == {7, 9}


def test_folder_that_is_no_model_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a model folder"):
        load_model(tmp_path, "cpu")
