"""Flow `warm-start`: a first policy that can use the harnesses' shell tool.

A scripted teacher answers the real harnesses through the same proxy and sandboxes as any policy; its successful
rollouts are the data of one supervised run through veRL's engine. The model `tiny` is made from nothing; its tokenizer
comes first, from the prompts of a few pilot rollouts, because a small model needs whole words as tokens. The model
`smollm2` has real weights and has never seen a tool call.

    python -m flows.warm_start '{}'                     # make warm-start: writes models/tiny
    python -m flows.warm_start '{"base": "smollm2"}'    # make model-smollm2: writes .openforge/models/smollm2
"""

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Literal

from prefect import flow
from prefect import task
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError
from pydantic import model_validator

from flows import plain_errors
from flows.config import refusal
from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from proxy_addons.identity import Rollout
from proxy_addons.live import Limits
from proxy_addons.packing import read_calls
from tasks import builtin
from tasks import harnesses
from tasks import taskset
from tasks import teaching
from tasks.epoch import merge
from tasks.epoch import owed
from tasks.proxy import proxy_python
from tasks.proxy import running_proxy
from tasks.rollout import Arena
from tasks.rollout import Slot
from tasks.rollout import fill
from tasks.run import ROOT
from tasks.run import model_path
from tasks.sandboxes import choose
from tasks.slots import Slots
from tasks.stand_in import script
from training import smollm2
from training import tiny_model
from training.job import SftJob
from training.job import SftSettings

PILOT_TASKS = 12
TRIES = 3


WORK = ROOT / ".openforge" / "warm-start"

# Both stop early on purpose: a policy that is right about half the time has something to learn and something to show.
FIT = SftSettings(learning_rate=2e-3, weight_decay=0.05, opening_steps=160, steps=12, batch_rows=12)
SMOLLM2 = {
    "out": str(model_path("smollm2")),
    "work": str(WORK / "smollm2"),
    "rollouts": 96,
    "training": SftSettings(learning_rate=6e-4, opening_steps=16, steps=6, batch_rows=8, dtype="bfloat16"),
}


class WarmStartConfig(BaseModel):
    """How the local policy is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base: Literal["tiny", "smollm2"] = Field(
        default="tiny", description="tiny: made from nothing; smollm2: real weights"
    )
    out: str = Field(default=str(model_path("tiny")), description="model folder to write")
    work: str = Field(default=str(WORK / "tiny"), description="rollouts and checkpoints go here")
    seed: int = Field(default=1, ge=1, description="seed of tasks and weights; 0 is the evaluated task set's")
    rollouts: int = Field(default=1200, ge=12, description="teacher rollouts")
    harnesses: list[str] = Field(default=["claude_code", "codex"], min_length=1, description="harnesses to imitate in")
    concurrency: int = Field(default=3, ge=1, description="rollouts at a time")
    vocab_size: int = Field(default=2048, ge=300, description="tokens of the tokenizer")
    layers: int = Field(default=3, ge=1, description="layers of the model")
    hidden: int = Field(default=256, ge=32, description="width of the model")
    heads: int = Field(default=4, ge=2, description="attention heads")
    head_dim: int = Field(default=64, ge=8, description="width of a head")
    training: SftSettings = FIT

    @model_validator(mode="before")
    @classmethod
    def _of_the_base(cls, given: Any) -> Any:
        """The defaults above are `tiny`'s."""
        return SMOLLM2 | given if isinstance(given, dict) and given.get("base") == "smollm2" else given


DEFAULTS = WarmStartConfig()
plain_errors.install()


@flow(name="warm-start", log_prints=True)
async def warm_start(config: WarmStartConfig = DEFAULTS) -> str:
    """Make the model; returns its folder. What is already there of an earlier, interrupted flow is used.

    Raises ConfigError without the base's weights.
    """
    base = await untaught_tiny(config) if config.base == "tiny" else untaught_smollm2()
    rows = await teach(config, base, "teach", config.seed, config.rollouts)
    solved = [row for row in rows if row["reward"] == 1.0]
    print(f"teacher: {len(solved)} of {len(rows)} rollouts solved; these are learned from")
    return await imitate(config, base, solved)


async def untaught_tiny(config: WarmStartConfig) -> Path:
    """The model `tiny` before it has learned anything, with a tokenizer made from pilot rollouts."""
    work = Path(config.work)
    pilot = bytes_model(work / "bytes-model")
    rows = await teach(config, pilot, "pilot", config.seed + 1, PILOT_TASKS)
    return fresh_model(config, pilot, rows, work / "fresh-model")


def untaught_smollm2() -> Path:
    """SmolLM2 as `training.smollm2` converts it. Raises ConfigError where that has not been done."""
    folder = smollm2.CONVERTED
    if not (folder / "renderer.json").exists():
        raise ConfigError(f"smollm2: no converted weights in {folder}; run `make model-smollm2`")
    return folder


@task
async def teach(config: WarmStartConfig, model: Path, name: str, seed: int, count: int) -> list[dict[str, Any]]:
    """`count` teacher rollouts on training tasks drawn from `seed`, recorded with the tokenizer of `model`."""
    folder = Path(config.work) / name
    tasks = await asyncio.to_thread(_tasks, Path(config.work) / f"tasks-{seed}-{count}", seed, count)
    chosen = [harnesses.load(harness) for harness in config.harnesses]
    slots = [
        Slot(Rollout(name, 0, each.id, 0), each, chosen[n // len(builtin.KINDS) % len(chosen)], "train")
        for n, each in enumerate(tasks)
    ]
    todo = owed(folder, slots, TRIES)
    print(f"{name}: {len(todo)} teacher rollouts to run of {len(slots)}")
    if not todo:
        return merge(folder, [[slot] for slot in slots], TRIES)
    async with _arena(config, model, folder) as arena:
        for done, next_one in enumerate(asyncio.as_completed([fill(slot, arena) for slot in todo]), 1):
            row = await next_one
            if row["reward"] != 1.0:
                print(f"{name}: {row['rollout']} in {row['harness']}: reward {row['reward']}, {row['reason']}")
            if done % 100 == 0:
                print(f"{name}: {done} of {len(todo)}")
    return merge(folder, [[slot] for slot in slots], TRIES)


@contextlib.asynccontextmanager
async def _arena(config: WarmStartConfig, model: Path, folder: Path) -> AsyncIterator[Arena]:
    sandbox = choose("auto")
    sandbox.reap(f"{folder.name}-e")
    async with (
        script("teacher")(model, folder / "teacher.log") as engine,
        running_proxy(proxy_python(ROOT), [engine], model, folder / "proxy.log") as proxy,
    ):
        yield Arena(
            proxy=proxy,
            sandbox=sandbox,
            harness_root=ROOT / harnesses.INSTALL,
            folder=folder,
            scratch=folder / "scratch",
            limits=Limits(max_model_len=tiny_model.MAX_POSITIONS),
            memory_mb=2048,
            cpus=1.0,
            pids=256,
            timeout_s=60.0,
            tries=TRIES,
            slots=Slots(config.concurrency),
        )


def _tasks(folder: Path, seed: int, count: int) -> list[taskset.Task]:
    if not folder.exists():
        temporary = folder.with_name(f".{folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        builtin.generate(temporary, seed, count, 0)
        temporary.rename(folder)
    return taskset.load(folder)


def bytes_model(folder: Path) -> Path:
    """A folder that the proxy can use before there is a tokenizer: every byte is a token."""
    tiny_model.make_tokenizer([], 256 + len(tiny_model.SPECIAL_TOKENS)).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (folder / "renderer.json").write_text(json.dumps(tiny_model.RENDERER))
    return folder


def fresh_model(config: WarmStartConfig, pilot: Path, rows: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Tokenizer, from what the pilot rollouts said and the tasks' words, and untrained weights."""
    if not (folder / "renderer.json").exists():
        texts = [*recorded_texts(pilot, rows), *vocabulary()]
        tokenizer = tiny_model.make_tokenizer(texts, config.vocab_size)
        shape = (config.layers, config.hidden, config.heads, config.head_dim)
        tiny_model.save(tiny_model.make_model(tokenizer, config.seed, *shape), tokenizer, folder)
        (folder / "renderer.json").write_text(json.dumps(tiny_model.RENDERER))
    return folder


def recorded_texts(model: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    """All that was said in these rollouts, as one text each."""
    tokenizer = tiny_model.PreTrainedTokenizerFast.from_pretrained(str(model))
    texts = []
    for row in rows:
        calls = read_calls(row["calls_path"], ["prompt_delta_ids", "sampled_ids"])
        ids = [token for call in calls for token in [*call["prompt_delta_ids"], *(call["sampled_ids"] or ())]]
        texts.append(str(tokenizer.decode(ids)))
    return texts


def vocabulary() -> list[str]:
    """The words of the built-in tasks as they occur, often enough that each becomes one token."""
    words = [*builtin.NAMES, *builtin.VALUES, *builtin.KEYS, *builtin.FOLDERS]
    return [text for word in words for text in (word, f" {word}/")] * 60


async def imitate(config: WarmStartConfig, base: Path, rows: Sequence[dict[str, Any]]) -> str:
    """Supervised learning on the rollouts in `rows`; the result goes to `config.out` with how it was made."""
    work, out = Path(config.work), Path(config.out)
    job = SftJob(
        base_model=str(base),
        calls=tuple(row["calls_path"] for row in rows),
        out=str(work / "fitted"),
        result=str(work / "sft.json"),
        seed=config.seed,
        settings=config.training,
    )
    result = await teaching.fit(job, work / "sft.log")
    if not (work / "fitted" / "model.safetensors").exists():
        raise ConfigError(f"warm start: no weights in {work}/fitted; see {work}/sft.log")
    command = {"tiny": "make warm-start", "smollm2": "make model-smollm2"}[config.base]
    made = {"command": command, "config": config.model_dump(exclude={"out", "work"}), "fit": result}
    (work / "fitted" / "warm_start.json").write_text(json.dumps(made, indent=1))
    shutil.copy(base / "renderer.json", work / "fitted" / "renderer.json")
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(work / "fitted", out)
    return str(out)


if __name__ == "__main__":
    try:
        asyncio.run(warm_start(WarmStartConfig.model_validate_json(sys.argv[1])))
    except ValidationError as error:
        sys.exit(f"warm-start: {refusal(error, WarmStartConfig)}")
    except OpenForgeError as error:
        sys.exit(f"warm-start: {error}")
