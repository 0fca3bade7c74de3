"""Flow `openforge`, deployment `sft`: a supervised fit on a teacher's rollouts that succeeded in the real harnesses.

    make sft CONFIG='{"teacher": "self", "attempts": 4, "task_count": 40}'
    prefect deployment run openforge/sft -p 'config={"teacher": "provider", "provider": {"base_url": …, "model": …}}'

The teacher answers the harnesses through the same proxy and sandboxes as any policy; what is recorded is never run
again. The fitted model is runs/<run>/model, ready for `model:` of a training run or an evaluation.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from prefect import flow
from prefect import task
from prefect.artifacts import acreate_table_artifact

from flows.config import new_run_name
from flows.sft_config import SftConfig
from flows.sft_config import load_sft_config
from flows.train import Session
from flows.train import open_session
from flows.train import run_stage
from proxy_addons.errors import ConfigError
from proxy_addons.errors import OpenForgeError
from tasks import evaluation
from tasks import teaching
from tasks.epoch import stage
from tasks.report import write_text
from tasks.stand_in import StandIn
from tasks.stand_in import provided
from tasks.stand_in import script
from training.job import SftJob
from training.job import SftSettings

DEFAULTS = SftConfig()
STAGE = "teach"


@flow(name="openforge", log_prints=True)
async def sft(config: SftConfig = DEFAULTS) -> str:
    """Fit a model to a teacher's successful rollouts; returns the folder of the fitted model.

    Args:
        config: the teacher, the tasks, the fit. Fields left out come from the profile.
    """
    config = load_sft_config(config)
    config = config.model_copy(update={"run": config.run or new_run_name(datetime.now(), "sft")})
    async with open_session(config, _stand_in(config)) as session:
        groups = evaluation.plan(
            session.name, session.tasks, session.harnesses, "train", config.task_count, config.attempts, kind=STAGE
        )
        folder = session.run.path / STAGE
        tries = await run_stage(session, folder, groups, STAGE, 0)
    said = await asyncio.to_thread(teaching.reader, session.base_model)
    chosen, dropped = await asyncio.to_thread(
        teaching.choose, tries, said, min_reward=config.min_reward, keep=config.keep, alike=config.alike
    )
    print(f"learning from {len(chosen)} of {len(chosen) + dropped.total()} rollouts; left out: {dict(dropped)}")
    if not chosen:
        raise ConfigError(f"{STAGE}: no rollout to learn from ({dict(dropped)}); more attempts, or another teacher")
    with stage(session.run.path, "fit", 0):
        result = await _fit(session, chosen)
    summary = {"teacher": _name(config), "rollouts": len(chosen), "left_out": dict(dropped), "fit": result}
    write_text(session.run.path / "summary.json", json.dumps(summary, indent=1) + "\n")
    rows = [{"measure": key, "value": str(value)} for key, value in {**summary, **result}.items() if key != "fit"]
    await acreate_table_artifact(rows, key=f"{session.name}-fit")
    print(f"model: {result['hf_path']}")
    return str(result["hf_path"])


def _stand_in(config: SftConfig) -> StandIn | None:
    if config.provider:
        return provided(config.provider)
    return script("teacher") if config.teacher == "script" else None


def _name(config: SftConfig) -> str:
    if config.provider:
        return config.provider.name
    return {"self": f"the model {config.model}", "script": "the script of the built-in tasks"}[config.teacher]


async def _fit(session: Session[SftConfig], chosen: Sequence[Any]) -> dict[str, Any]:
    """The fit, in a process of its own."""
    config, path = session.config, session.run.path

    @task(name="fit", persist_result=False)
    async def fit() -> dict[str, Any]:
        job = SftJob(
            base_model=str(session.base_model),
            calls=tuple(row["calls_path"] for row in chosen),
            out=str(path / "model"),
            result=str(path / "sft.json"),
            seed=config.seed,
            settings=SftSettings(**config.fit.model_dump()),
        )
        return await teaching.fit(job, path / "logs" / "sft.log")

    return await fit()


if __name__ == "__main__":
    try:
        asyncio.run(sft(load_sft_config(json.loads(sys.argv[1]))))
    except OpenForgeError as error:
        sys.exit(f"sft: {error}")
