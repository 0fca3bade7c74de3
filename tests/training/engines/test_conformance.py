"""What every policy engine must do, asked of real servers through the proxy's own client."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from proxy_addons.capability import Capability
from proxy_addons.capability import measure
from proxy_addons.capability import why_untrainable
from proxy_addons.conversation import Problem
from proxy_addons.engine import Completion
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Sampling
from proxy_addons.errors import ConfigError
from proxy_addons.wire import Connections
from tests.training.engines.models import ids
from tests.training.engines.models import save_model
from training import engines
from training.child import Child
from training.child import free_port
from training.child import start_child
from training.engines import vllm
from training.policy_server import PolicyServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 2048
CLOSE = 1e-3


@dataclass
class Running:
    """A server for all tests of one engine, and what it serves at the moment."""

    url: str
    child: Child
    first: Path
    second: Path
    folder: Path
    version: int = 0


@pytest.fixture(scope="module", params=engines.NAMES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if request.param == "vllm" and vllm.python() is None:
        pytest.skip(f"vLLM is not installed (`make engine-vllm`, or set {vllm.PYTHON})")
    folder = tmp_path_factory.mktemp(request.param)
    first, second = save_model(folder / "first", 1), save_model(folder / "second", 2)
    port = free_port()
    launch = engines.load(request.param).launch(first, port, LIMIT)
    child = start_child(launch.argv, folder / "server.log", {**os.environ, **launch.env}, cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + launch.start_s
        while not _up(url):
            assert child.alive() and time.monotonic() < deadline, child.last_lines(20)
            time.sleep(0.2)
        httpx.post(f"{url}/update_weight_version", json={"new_version": "0"}).raise_for_status()
        yield Running(url, child, first, second, first)
    finally:
        child.stop()


def _up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


@pytest_asyncio.fixture
async def client(running: Running) -> AsyncIterator[EngineClient]:
    async with Connections() as connections:
        yield EngineClient(running.url, connections, timeout_s=120)


@pytest_asyncio.fixture
async def policy(running: Running) -> AsyncIterator[PolicyServer]:
    async with aiohttp.ClientSession() as session:
        server = PolicyServer(running.url, running.child, running.folder, session)
        server.version = running.version
        yield server
        running.folder, running.version = server.folder, server.version


@torch.inference_mode()
def expected(
    folder: Path, prompt: list[int], sampled: tuple[int, ...], temperature: float, top_p: float
) -> list[float]:
    """The logprobs by transformers, token by token in plain words."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits = model(torch.tensor([[*prompt, *sampled]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    result = []
    for row, token in zip(logits / temperature, sampled, strict=True):
        probabilities = row.softmax(-1)
        order = probabilities.argsort(descending=True)
        kept, mass = [], 0.0
        for candidate in order.tolist():
            kept.append(candidate)
            mass += float(probabilities[candidate])
            if mass >= top_p:
                break
        assert top_p == 1 or token in kept
        total = float(probabilities[kept].sum()) if top_p < 1 else 1.0
        result.append(float((probabilities[token] / total).log()))
    return result


def assert_exact(
    running: Running, prompt: list[int], got: Completion, temperature: float = 1.0, top_p: float = 1
) -> None:
    assert got.findings == ()
    assert got.logprobs == pytest.approx(expected(running.folder, prompt, got.token_ids, temperature, top_p), abs=CLOSE)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.7)])
async def test_logprobs_are_of_the_distribution_sampled_from(
    running: Running, client: EngineClient, temperature: float, top_p: float
) -> None:
    prompt = ids(40, 1)
    got = await client.generate(prompt, Sampling(max_tokens=24, temperature=temperature, top_p=top_p, seed=3))
    assert_exact(running, prompt, got, temperature, top_p)
    assert got.weight_version == running.version


async def test_measured_by_real_completions_it_is_fit_for_training(running: Running, client: EngineClient) -> None:
    found = await measure(client, ids(40, 33), LIMIT)
    assert found == Capability(
        engine=running.url,
        ids=True,
        logprobs=True,
        logprob_kind="processed",
        max_tokens="honoured",
        large_max_tokens="clamped",
        stop_token="included",
        finish_reasons="right",
        long_prompt="refused",
        weight_version=running.version,
        max_model_len=LIMIT,
    )
    assert why_untrainable(found, 0.7, LIMIT) == []


async def test_greedy_takes_the_likeliest_with_its_logprob_at_temperature_1(
    running: Running, client: EngineClient
) -> None:
    prompt = ids(30, 2)
    got = await client.generate(prompt, Sampling(max_tokens=8, temperature=0.0))
    again = await client.generate(prompt, Sampling(max_tokens=8, temperature=0.0))
    assert got.token_ids == again.token_ids
    assert_exact(running, prompt, got)


async def test_stop_token_ends_the_reply_and_is_in_it(running: Running, client: EngineClient) -> None:
    prompt = ids(20, 3)
    free = await client.generate(prompt, Sampling(max_tokens=12, temperature=1.0, seed=1))
    stop = free.token_ids[5]
    got = await client.generate(prompt, Sampling(max_tokens=12, temperature=1.0, seed=1, stop_token_ids=(stop,)))
    end = free.token_ids.index(stop) + 1
    assert (got.token_ids, got.finish) == (free.token_ids[:end], "stop")
    assert_exact(running, prompt, got)


async def test_reply_ends_at_max_tokens_or_at_the_context(client: EngineClient) -> None:
    got = await client.generate(ids(20, 4), Sampling(max_tokens=7, seed=2))
    assert (len(got.token_ids), got.finish) == (7, "length")
    got = await client.generate(ids(LIMIT - 3, 4), Sampling(max_tokens=50, seed=2))
    assert (len(got.token_ids), got.finish) == (3, "length")


async def test_prompt_that_fills_the_context_is_refused_with_the_limit_named(client: EngineClient) -> None:
    with pytest.raises(Problem) as refused:
        await client.generate(ids(LIMIT, 5), Sampling(max_tokens=1))
    assert refused.value.kind == "context_length"
    assert str(LIMIT) in refused.value.message


async def test_seed_reproduces_and_another_seed_differs(client: EngineClient) -> None:
    prompt = ids(25, 6)
    one, same, other, free, free_again = [
        await client.generate(prompt, Sampling(max_tokens=16, seed=seed)) for seed in (5, 5, 6, None, None)
    ]
    assert one.token_ids == same.token_ids
    assert one.token_ids != other.token_ids
    assert free.token_ids != free_again.token_ids


async def test_concurrent_requests_do_not_touch_each_other(running: Running, client: EngineClient) -> None:
    prompts = [ids(10 + 60 * i, 10 + i) for i in range(10)]
    replies = await asyncio.gather(
        *[client.generate(prompt, Sampling(max_tokens=5 + 3 * i, seed=i)) for i, prompt in enumerate(prompts)]
    )
    for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        assert len(reply.token_ids) == 5 + 3 * i or reply.finish == "stop"
        assert_exact(running, prompt, reply)


async def test_reused_prefix_changes_nothing_but_the_time(running: Running, client: EngineClient) -> None:
    prompt = ids(700, 7)
    for turn in range(3):  # a chain: each prompt is the last one, its reply, and something new
        got = await client.generate(prompt, Sampling(max_tokens=10, seed=turn))
        assert_exact(running, prompt, got)
        prompt = [*prompt, *got.token_ids, *ids(15, 20 + turn)]
    body = {"model": "policy", "token_ids": prompt, "sampling_params": {"max_tokens": 1}}
    usage = httpx.post(f"{running.url}/inference/v1/generate", json=body, timeout=60).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 600


async def test_group_with_one_prompt_is_exact_for_each(running: Running, client: EngineClient) -> None:
    prompt = ids(600, 8)
    replies = await asyncio.gather(*[client.generate(prompt, Sampling(max_tokens=6, seed=i)) for i in range(6)])
    assert len({reply.token_ids for reply in replies}) > 1
    for reply in replies:
        assert_exact(running, prompt, reply)


async def test_client_that_leaves_frees_its_place(running: Running, client: EngineClient) -> None:
    prompt = ids(20, 9)
    leaving = asyncio.create_task(client.generate(prompt, Sampling(max_tokens=LIMIT - 20, temperature=2.0)))
    await asyncio.sleep(0.3)
    assert not leaving.done()
    leaving.cancel()
    started = time.monotonic()
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as http:
        (await http.post("/pause", params={"mode": "wait"})).raise_for_status()
        waited = time.monotonic() - started
        (await http.post("/resume")).raise_for_status()
    whole = time.monotonic()
    got = await client.generate(prompt, Sampling(max_tokens=200, temperature=2.0, seed=1))
    per_token = (time.monotonic() - whole) / len(got.token_ids)
    assert waited < per_token * LIMIT / 2, "the abandoned request went on"


async def test_reload_serves_the_new_weights_under_the_new_version(
    running: Running, client: EngineClient, policy: PolicyServer
) -> None:
    prompt = ids(50, 30)
    before = await client.generate(prompt, Sampling(max_tokens=8, seed=1))
    version = policy.version + 1
    await policy.reload(running.second, version)
    after = await client.generate(prompt, Sampling(max_tokens=8, seed=1))
    assert (before.weight_version, after.weight_version) == (version - 1, version)
    running.folder = running.second
    assert_exact(running, prompt, after)
    assert after.logprobs != pytest.approx(expected(running.first, prompt, after.token_ids, 1, 1), abs=0.1)


async def test_requests_under_way_end_under_the_old_weights(
    running: Running, client: EngineClient, policy: PolicyServer
) -> None:
    prompt, old = ids(20, 31), policy.version
    target = running.first if policy.folder == running.second else running.second
    before = asyncio.create_task(client.generate(prompt, Sampling(max_tokens=400, temperature=2.0, seed=4)))
    await asyncio.sleep(0.2)
    reloading = asyncio.create_task(policy.reload(target, old + 1))
    await asyncio.sleep(0.1)
    late = asyncio.create_task(client.generate(prompt, Sampling(max_tokens=5, seed=4)))
    drained = await before
    assert_exact(running, prompt, drained, temperature=2.0)
    assert (len(drained.token_ids), drained.weight_version) == (400, old)
    await reloading
    running.folder = target
    assert (await late).weight_version == old + 1
    assert_exact(running, prompt, await late)


async def test_folder_that_cannot_be_loaded_leaves_the_server_as_it_was(
    running: Running, client: EngineClient, policy: PolicyServer, tmp_path: Path
) -> None:
    torn = shutil.copytree(running.first, tmp_path / "torn")
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for bad, said in (
        (tmp_path / "nowhere", "config.json"),
        (save_model(tmp_path / "wide", 3, hidden=128), "not the architecture"),
        (save_model(tmp_path / "tied", 3, tied=True), "tied"),
        (torn, "not a whole model folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            await policy.reload(bad, policy.version + 1)
    prompt = ids(12, 32)
    got = await client.generate(prompt, Sampling(max_tokens=4, seed=1))
    assert got.weight_version == policy.version
    assert_exact(running, prompt, got)
