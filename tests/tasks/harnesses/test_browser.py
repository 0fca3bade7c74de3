"""The browser harness for real: Chromium in a sandbox, the recording proxy, a policy that sees, the site's verdict.

The policy is a script; it clicks where the sites' layout has things.
"""

import hashlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from proxy_addons import records
from tasks import sites
from tasks import taskset
from tasks.harnesses.browser_run import HEIGHT
from tasks.harnesses.browser_run import WIDTH
from tasks.rollout import Arena
from tasks.rollout import fill
from tasks.sites.server import ROW
from tasks.sites.server import row
from tests.support.processor import expand
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving
from tests.support.toy_model import make_seeing_model
from tests.tasks.arena import arena_of
from tests.tasks.arena import slot
from tests.tasks.boxes import BACKENDS
from tests.tasks.boxes import here
from tests.tasks.harnesses.real import installed
from training.rows import build_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

Action = dict[str, Any]


def on(left: int, top: int) -> Action:
    """A click into the box that stands there."""
    return {"action": "click", "x": left + 20, "y": top + 20}


def typed(text: str) -> Action:
    return {"action": "type", "text": text}


def key(name: str) -> Action:
    return {"action": "key", "key": name}


DONE: Action = {"action": "done", "answer": ""}
CART, ORDER = on(40, 60), on(600, 60)
NAME_TO_TOWN = [on(240, row(0)), typed("Ada Berg"), key("Tab"), typed("Turin")]
SEARCH = [
    on(40, 60),
    typed("ships"),
    key("Enter"),
    on(40, row(0)),
    {"action": "scroll", "x": 640, "y": 360, "dy": 2000},
]
KEEP = on(40, HEIGHT - ROW + 12)  # the last box of a page that is scrolled to its end

SOLVED: dict[str, list[Action]] = {
    "shop": [on(600, row(2)), CART, ORDER, DONE],
    "form": [*NAME_TO_TOWN, on(400, row(2)), on(240, row(3)), on(240, row(4)), DONE],
    "search": [*SEARCH, KEEP, {"action": "done", "answer": "Lighthouses"}],
}
NOT_SOLVED: dict[str, list[Action]] = {
    "shop": [on(600, row(3)), CART, ORDER, DONE],  # the product below
    "form": [*NAME_TO_TOWN, on(400, row(2)), on(240, row(4)), DONE],  # with the newsletter
    "search": [*SEARCH, DONE],  # seen, not kept
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seeing_model(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, taskset.Task]:
    folder = tmp_path_factory.mktemp("sites")
    sites.generate(folder)
    return {task.kind: task for task in taskset.load(folder) if task.split == "train"}


@dataclass
class Played:
    """A rollout of a script, and the text of the prompts that the policy was shown."""

    row: dict[str, Any]
    calls: list[dict[str, Any]]
    prompts: list[str]
    folder: Path


@asynccontextmanager
async def place_for(model: Path, folder: Path, replies: list[str]) -> AsyncIterator[tuple[Arena, ScriptedEngine]]:
    """An arena whose policy says `replies` one after the other, and the last one for ever."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    said = [tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False) for reply in replies]
    engine = ScriptedEngine(lambda _, number: said[min(number, len(said) - 1)], expand=expand(model))
    async with serving(engine), arena_of(engine.url, model, folder) as place:
        limits = replace(place.limits, max_model_len=200_000)
        yield replace(place, limits=limits, timeout_s=200.0, pids=512), engine


async def play(model: Path, folder: Path, task: taskset.Task, script: list[Action | str], **changed: Any) -> Played:
    harness = installed("browser")
    replies = [said if isinstance(said, str) else json.dumps(said) for said in script]
    async with place_for(model, folder, replies) as (place, engine):
        row = await fill(slot(task, harness), replace(place, **changed))
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    prompts = [str(tokenizer.decode(body["token_ids"])) for body in engine.asked]
    return Played(row, records.read(row["calls_path"], records.CALLS), prompts, Path(row["calls_path"]).parent)


@pytest.mark.parametrize("site", SOLVED)
async def test_a_site_is_solved_by_sight(
    site: str, model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    script = SOLVED[site]
    played = await play(model, tmp_path, tasks[site], list(script))
    row, calls = played.row, played.calls
    assert (row["exit"], row["error_class"], row["reward"], row["complete"]) == ("completed", None, 1.0, True), row
    assert row["reason"].startswith("done, in Chromium "), row
    assert [call["dialect"] for call in calls] == ["openai_chat"] * len(script)
    assert [call["parent_call"] for call in calls] == [None, *range(len(script) - 1)]
    assert {code for call in calls for code in call["findings"]} <= {"max_tokens_cut"}, calls
    # For a learner that reads text only, every turn is refused, by that reason.
    rows, report = build_rows(calls, max_row_tokens=200_000)
    assert (rows, dict(report.refused)) == ([], {"images_in_prompt": len(script)})


@pytest.mark.parametrize("site", NOT_SOLVED)
async def test_what_was_done_otherwise_is_worth_nothing(
    site: str, model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    row = (await play(model, tmp_path, tasks[site], list(NOT_SOLVED[site]))).row
    assert (row["exit"], row["reward"]) == ("completed", 0.0), row


@BACKENDS
async def test_in_every_sandbox(backend: str, model: Path, tasks: dict[str, taskset.Task], tmp_path: Path) -> None:
    row = (await play(model, tmp_path, tasks["shop"], list(SOLVED["shop"]), sandbox=here(backend))).row
    assert (row["sandbox"], row["reward"]) == (backend, 1.0), row


async def test_the_pictures_of_a_rollout_are_read_as_a_trainer_would(
    model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    """By hash, in the order of the calls, in the model's own patches."""
    played = await play(model, tmp_path, tasks["shop"], list(SOLVED["shop"]))
    files = {path.stem: path for path in (played.folder / "images").iterdir()}
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == name for name, path in files.items())
    processor = Qwen2VLImageProcessorPil.from_pretrained(str(model))
    pad: Any = AutoTokenizer.from_pretrained(str(model)).convert_tokens_to_ids("<|image_pad|>")
    prompt: list[int] = []
    for number, call in enumerate(played.calls):
        added = [image["sha256"] for m in json.loads(call["messages_delta"]) for image in m.get("images", [])]
        before = played.calls[number - 1] if number else {"images": [], "sampled_ids": []}
        assert call["images"] == [*before["images"], *added] and len(added) == 1
        pictures = [Image.open(files[name]) for name in call["images"]]
        assert {picture.size for picture in pictures} == {(WIDTH, HEIGHT)}
        prompt = (prompt + before["sampled_ids"])[: call["prompt_prefix_len"]] + call["prompt_delta_ids"]
        seen = processor(images=[picture.convert("RGB") for picture in pictures], return_tensors="np")
        patches = int(seen["image_grid_thw"].prod(axis=1).sum())
        assert prompt.count(pad) == patches // processor.merge_size**2
        assert len(seen["pixel_values"]) == patches
    # What they show: the cart's counter, then the cart, then the cart without what was ordered.
    assert len(set(played.calls[-1]["images"])) == 4


async def test_what_is_no_action_is_told_and_survived(
    model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    wrong: list[Action | str] = [
        "I will click the button.",
        {"action": "click", "x": 5000, "y": 1},
        {"action": "goto", "url": "http://127.0.0.1:8001/"},  # nobody there: an action, and one that fails
        {"action": "key", "key": "NoSuchKey"},
        {"action": "type", "text": "into nothing"},
        {"action": "goto", "url": "http://127.0.0.1:8000/"},
    ]
    played = await play(model, tmp_path, tasks["shop"], [*wrong, *SOLVED["shop"]])
    assert (played.row["exit"], played.row["reward"]) == ("completed", 1.0), played.row
    told = [prompt.rpartition("<|im_start|>user\n")[2] for prompt in played.prompts]
    assert told[1].startswith("That is no action: the reply is not one JSON object")
    assert told[2].startswith("That is no action: x must be from 0 to 1279. Nothing was done.")
    assert told[3].startswith("That did not work: ") and "ERR_CONNECTION_REFUSED" in told[3]
    assert told[4].startswith("That did not work: ") and "NoSuchKey" in told[4]
    assert told[6].startswith("Done.\nThe page is http://127.0.0.1:8000/\n")
    assert [len(call["images"]) for call in played.calls[:4]] == [1, 1, 1, 2]  # where nothing was done nothing is shown


async def test_it_reaches_the_hosts_that_its_task_allows_and_no_other(
    model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    addresses = [a.address for links in psutil.net_if_addrs().values() for a in links if a.family == socket.AF_INET]
    own = next((address for address in addresses if not address.startswith("127.")), None)
    if own is None:
        pytest.skip("a host that is not loopback needs an address, and this machine has none")
    visited: list[str] = []

    async def page(http: web.Request) -> web.Response:
        visited.append(http.host)
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, own, 0).start()
    port = runner.addresses[0][1]
    script: list[Action | str] = [
        {"action": "goto", "url": f"http://{own}:{port}/"},
        {"action": "goto", "url": f"http://198.51.100.7:{port}/"},
        *SOLVED["shop"][-1:],
    ]
    task = replace(tasks["shop"], allow_hosts=(own,))
    try:
        played = await play(model, tmp_path, task, script)
    finally:
        await runner.cleanup()
    assert played.row["exit"] == "completed", played.row
    assert f"Done.\nThe page is http://{own}:{port}/" in played.prompts[1]
    assert {*visited} == {f"{own}:{port}"}
    assert {f"egress_passed:{own}", "egress_refused:198.51.100.7"} <= {*played.row["findings"]}, played.row


async def test_a_policy_that_says_no_action_any_more_is_scored(
    model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    row = (await play(model, tmp_path, tasks["form"], [SOLVED["form"][0], "I give up."])).row
    assert (row["exit"], row["error_class"], row["reward"], row["calls"]) == ("gave_up", "PolicyFailure", 0.0, 4), row
    assert row["reason"].startswith("3 replies in a row were no action"), row


async def test_out_of_calls_it_ends_by_itself(model: Path, tasks: dict[str, taskset.Task], tmp_path: Path) -> None:
    harness = installed("browser")
    async with place_for(model, tmp_path, [json.dumps({"action": "wait", "seconds": 1})]) as (place, engine):
        row = await fill(slot(tasks["form"], harness), replace(place, limits=replace(place.limits, max_calls=2)))
    assert (row["exit"], row["error_class"], row["reward"]) == ("out_of_calls", "PolicyFailure", 0.0), row
    assert len(engine.asked) == 2 and row["exit_code"] == 1


PAGES = """
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGES = {
    "/": b"<button onclick=confirm('Sure?')>ask</button> <a href=/tab target=_blank>open</a>",
    "/tab": b"<button onclick=window.close()>close</button>",
}
STYLE = b"<style>button, a { position: absolute; left: 0; top: 0; width: 90px; height: 90px } a { left: 100px }</style>"

class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            os._exit(7)
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(STYLE + PAGES.get(self.path, b""))

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Site).serve_forever()
"""


def with_site(task: taskset.Task, code: str, folder: Path) -> taskset.Task:
    """`task` with another site, below `folder`."""
    (folder / "task/environment/site").mkdir(parents=True)
    (folder / "task/environment/site/server.py").write_text(code)
    return replace(task, folder=folder / "task")


async def test_dialogs_are_told_and_the_newest_tab_is_shown(
    model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    task = with_site(tasks["shop"], PAGES, tmp_path)
    played = await play(model, tmp_path, task, [on(0, 0), on(100, 0), on(0, 0), DONE])
    told = [prompt.rpartition("<|im_start|>user\n")[2].partition("<|vision")[0] for prompt in played.prompts]
    start = "http://127.0.0.1:8000/"
    assert told[1:] == [
        f"Done. A dialog said 'Sure?'; it was accepted.\nThe page is {start}\n",
        f"Done.\nThe page is {start}tab\n",
        f"Done.\nThe page is {start}\n",
    ], played.row


@pytest.mark.parametrize(
    ("code", "exit_", "reason"),
    [
        ("raise SystemExit(7)", "no_call", "site/server.py ended with exit status 7 before anybody came"),
        (PAGES, "failed", "RuntimeError: site/server.py ended by itself with exit status 7"),
    ],
)
async def test_a_site_that_ends_is_not_the_policys_doing(
    code: str, exit_: str, reason: str, model: Path, tasks: dict[str, taskset.Task], tmp_path: Path
) -> None:
    script: list[Action | str] = [{"action": "goto", "url": "http://127.0.0.1:8000/end"}, DONE]
    row = (await play(model, tmp_path, with_site(tasks["shop"], code, tmp_path), script)).row
    assert (row["exit"], row["error_class"], row["reward"]) == (exit_, "HarnessError", None), row
    assert reason in row["reason"], row
