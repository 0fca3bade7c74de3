"""The flow, whole and real: Prefect, sandboxes, verifiers, the tiny policy; a provider that is a small server."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter
from prefect.client.schemas.filters import ArtifactFilterKey
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.filters import FlowFilterName
from prefect.settings import PREFECT_API_URL

from flows.curate import curate
from flows.curate import evaluation_tasks
from flows.curate import show
from flows.curate_config import CurateConfig
from proxy_addons import records
from proxy_addons.errors import ConfigError
from tasks import taskset
from tasks.curate import funnel
from tasks.curate import wishes
from tasks.curate.decisions import recall
from tasks.curate.model_proposer import TOPICS
from tasks.run import BUILTIN_HELDOUT
from tasks.run import ROOT
from tasks.run import load_tasks
from tests.support.provider import provider
from tests.tasks.adapters import checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("prefect_server")]

CONFIG: dict[str, Any] = {"run": "set", "proposals": 30, "concurrency": 3, "harnesses": ["codex"]}
DRIVER = "import asyncio, json, sys; from flows.curate import curate; asyncio.run(curate(json.loads(sys.argv[1])))"


def given(runs: Path, **more: Any) -> dict[str, Any]:
    return CONFIG | {"runs_dir": str(runs)} | more


def run(runs: Path, **more: Any) -> Path:
    return Path(asyncio.run(curate(CurateConfig.model_validate(given(runs, **more))))).parent


def rows(folder: Path) -> list[dict[str, Any]]:
    return records.read(str(folder / "funnel.parquet"), funnel.FUNNEL)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose process was killed while it tested."""
    runs = tmp_path_factory.mktemp("runs")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(given(runs))],
        cwd=ROOT,
        env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    file = runs / "set/round-00/tested.jsonl"
    deadline = time.monotonic() + 120
    while len(recall(file)) < 5 and time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    _, said = driver.communicate()
    assert 5 <= len(recall(file)) < 25, said.decode()
    return runs / "set"


@pytest.fixture(scope="module")
def finished(cut: Path) -> Path:
    """The same run, taken up."""
    return run(cut.parent)


def test_a_run_that_was_killed_goes_on_where_it_was(cut: Path, finished: Path) -> None:
    assert finished == cut
    lines = [line for line in (cut / "round-00/tested.jsonl").read_text().splitlines() if line]
    tested = Counter(json.loads(line)["task"] for line in lines if line.endswith("}"))
    assert set(tested.values()) == {1}
    came = next(stage["came"] for stage in funnel.summarise(rows(cut)) if stage["stage"] == "test")
    assert len(tested) == came


def test_every_proposal_is_accounted_for_and_every_kept_task_was_tested(finished: Path) -> None:
    found = rows(finished)
    assert len(found) == 30 == json.loads((finished / "funnel.json").read_text())["proposals"]
    assert all((row["stage"] == "kept") == (row["reason"] is None) for row in found)
    kept = taskset.load(finished / "tasks")
    assert {task.id for task in kept} == {row["task"] for row in found if row["stage"] == "kept"}
    assert 15 <= len(kept) < 30
    tested = recall(finished / "round-00/tested.jsonl")
    assert all(tested[task.id].reason is None and tested[task.id].digest == task.digest for task in kept)
    assert taskset.validate(finished / "tasks") == []


def test_the_kept_set_is_one_to_train_on(finished: Path) -> None:
    assert {task.split for task in load_tasks(str(finished / "tasks"))} == {"train", "heldout"}


def test_the_funnel_is_printed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(finished)
    said = capsys.readouterr().out
    assert "set: 30 proposals by templates" in said
    assert "propose" in said and "prune" in said and f"Task set: {finished}/tasks" in said


async def test_prefect_shows_the_stages_and_the_funnel(finished: Path) -> None:
    async with get_client() as client:
        ours = FlowFilter(name=FlowFilterName(any_=[curate.name]))
        names = {each.name for each in await client.read_task_runs(flow_filter=ours)}
        found = await client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["set-funnel"])))
    assert {f"{stage}, round 0" for stage in ("propose", "prune", "build", "test")} <= names
    assert found


def answer(instruction: str, test: str, solution: str = "echo 42 > answer.txt") -> str:
    return json.dumps({"instruction": instruction, "files": {"a.txt": "x"}, "solution": solution, "test": test})


CHECK = 'if [ "$(cat answer.txt 2>/dev/null)" = 42 ]; then reward=1; else reward=0; fi\n'
COIN = "[ $reward = 1 ] && reward=$((RANDOM % 2))\n"
TELL = "echo $reward > /logs/verifier/reward.txt\n"
ANSWERS = {
    "text-files": answer("Write the answer to answer.txt; it is 42.", CHECK + TELL),
    "file-trees": answer("Write the answer to answer.txt: it is 42.", CHECK + TELL),
    "tables": answer("Leave things as they are in this place.", "reward=1\n" + TELL, "true"),
    "json": answer("Make a note of the number that was asked for.", CHECK + COIN + TELL),
    "logs": "I cannot think of one.",
    "settings": answer("Put down a number. " * 100, CHECK + TELL),
    "python-bugs": answer("Say how many bugs there are in a file called answer.txt", "if then\n" + TELL),
    "python-features": answer("Extend the program so that it answers everything.", CHECK + TELL, "exit 3"),
}
REASONS = {
    "text-files": None,
    "file-trees": "near_duplicate",
    "tables": "noop_scores",
    "json": "flaky",
    "logs": "unreadable",
    "settings": "too_long",
    "python-bugs": "not_a_script",
    "python-features": "solution_scores",
}


def test_what_a_model_proposes_is_dropped_for_each_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROPOSER_KEY", "sk-very-secret")
    topic = {text: name for name, text in TOPICS.items()}

    async def curated() -> str:
        async with provider(
            lambda _, question: ANSWERS[next(topic[text] for text in topic if text in question)]
        ) as fake:
            endpoint = {"api": "anthropic", "base_url": fake.url, "model": "m", "key_env": "PROPOSER_KEY"}
            prices = {"prompt_usd": 10, "sampled_usd": 50}
            config = given(tmp_path, proposer="model", endpoint=endpoint | prices)
            config |= {"proposals": len(ANSWERS), "canary_repeats": 14, "evaluation_sets": []}
            return await curate(CurateConfig.model_validate(config))

    folder = Path(asyncio.run(curated())).parent
    assert {row["kind"]: row["code"] for row in rows(folder)} == REASONS
    summary = json.loads((folder / "funnel.json").read_text())
    assert (summary["prompt_tokens"], summary["sampled_tokens"]) == (8000, 80)
    assert summary["cost_usd"] == pytest.approx(8000 * 10e-6 + 80 * 50e-6)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert not any(b"sk-very-secret" in file.read_bytes() for file in files)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the tiny policy, and a round of refinement. Whether it can solve any of these is its own affair."""
    runs = tmp_path_factory.mktemp("probed")
    config = {"proposals": 6, "probe_attempts": 2, "refine_rounds": 1, "concurrency": 2, "evaluation_sets": []}
    try:
        return run(runs, **config)
    except ConfigError as error:
        assert "proposals is kept" in str(error)
        return runs / "set"


def test_what_the_policy_solves_sometimes_is_kept(probed: Path) -> None:
    for row in (row for row in rows(probed) if row["attempts"] is not None):
        always, never = row["succeeded"] == row["scored"], row["succeeded"] == 0
        wanted = "too_hard" if never else "too_easy" if always else None
        assert row["code"] in ({wanted, None} if never else {wanted}), row
    measured = [row for row in rows(probed) if row["attempts"] is not None]
    assert len(measured) > 2
    assert all(row["attempts"] == 2 for row in measured)


def test_the_next_round_refines_what_was_outside_the_band(probed: Path) -> None:
    first, second = (wishes.read(probed / f"round-{number:02}/wishes.json") for number in (0, 1))
    assert first and second
    by_task = {row["task"]: row for row in rows(probed)}
    assert {by_task[wish.parent]["code"] for wish in second if wish.parent} <= {"too_hard", "too_easy"}
    levels = {wish.task: wish.level for wish in first}
    for wish in second:
        assert wish.parent and wish.level == levels[wish.parent] + (1 if wish.direction == "harder" else -1)
        assert wish.transcript
        assert by_task[wish.task]["round"] == 1


def test_a_benchmark_that_cannot_run_here_is_kept_clear_of_all_the_same(tmp_path: Path) -> None:
    """One task needs a judge, which a curation has none of, the other a live site."""
    source = f"claweval:{checkout.make(tmp_path / 'checkout')}"
    question = {"web_name": "Shop", "id": "Shop--0", "ques": "How much is it?", "web": "https://shop.example/"}
    (tmp_path / "WebVoyager_data.jsonl").write_text(json.dumps(question))
    found = evaluation_tasks([source, f"webvoyager:{tmp_path}", "builtin"])
    assert found[f"{source}/t2-judged"] == "Say something."
    assert "How much is it?" in found[f"webvoyager:{tmp_path}/shop-0"]
    assert len([name for name in found if name.startswith("builtin/")]) == BUILTIN_HELDOUT


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"evaluation_sets": ["/no/such/set"]}, "task set /no/such/set: no task folders there"),
        (
            {
                "proposer": "model",
                "endpoint": {"api": "openai", "base_url": "http://h/v1", "model": "m", "key_env": "NO_SUCH_KEY"},
            },
            "key_env: the environment variable NO_SUCH_KEY is not set",
        ),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_starts(more: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        run(tmp_path, **more)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_an_evaluation_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/run.json").write_text(json.dumps({"config": {"attempts": 2}}))
    with pytest.raises(ConfigError, match="run 'set' is an evaluation: choose another name"):
        run(tmp_path)
