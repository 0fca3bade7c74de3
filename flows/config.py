"""The configuration of a training run: one pydantic model, which Prefect also shows as the form of a new run.

A run's configuration is its profile (`flows/profiles/<profile>.toml`, only what differs from the defaults below)
with the values given for this run on top.
"""

import difflib
import re
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated
from typing import Any
from typing import Literal
from typing import Self
from typing import TypeVar
from typing import get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import ValidationError
from pydantic import field_validator
from pydantic import model_validator
from pydantic_core import ErrorDetails

from proxy_addons.errors import ConfigError
from proxy_addons.findings import FINDINGS
from proxy_addons.identity import check_name
from tasks.adapters import CHOICES
from tasks.adapters import Choices
from tasks.adapters import is_benchmark
from tasks.rewards.rubric import JudgeConfig
from training.job import Layout
from training.rows import SIDE_CALLS

PROFILES = Path(__file__).parent / "profiles"

Harness = Literal[
    "browser", "claude_code", "codex", "gemini_cli", "mini_swe_agent", "openclaw", "opencode", "openhands", "qwen_code"
]


# What a user may look for and not find, with the reason.
_NOT_REPRODUCED = frozenset({"top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"})


# Where somebody may write a key by mistake, which must get into no log.
_MAY_BE_A_KEY = frozenset({"key_env", "base_url", "judge", "provider", "endpoint"})


def _is_image(value: str) -> str:
    if not re.fullmatch(r"[\w./:@-]+", value):
        raise ValueError("write it as REPOSITORY:TAG, without spaces")
    return value


def _is_host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", value):
        raise ValueError("write a name or an address, without http:// and without a port")
    return value


def _is_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("write it as http://HOST:PORT")
    return value


_Image = Annotated[str, AfterValidator(_is_image)]
_Host = Annotated[str, AfterValidator(_is_host)]
_Url = Annotated[str, AfterValidator(_is_url)]
_Port = Annotated[int, Field(ge=1, le=65535)]


class Part(BaseModel):
    """Part of a configuration: no unknown field, no change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingConfig(Layout):
    """The weight update: veRL's actor step on the recorded tokens."""

    learning_rate: float = Field(default=3e-4, gt=0, le=1, description="AdamW learning rate, constant")
    mini_batches: int = Field(default=1, ge=1, le=1024, description="optimizer steps per pass over an epoch's rows")
    ppo_epochs: int = Field(default=1, ge=1, le=16, description="passes over an epoch's rows")
    clip_grad: float = Field(default=1.0, gt=0, description="largest gradient norm")
    max_row_tokens: int = Field(
        default=16_384, ge=16, description="a longer training row is refused and counted, never cut"
    )
    leave_out: list[str] = Field(
        default=list(SIDE_CALLS), description="findings whose calls are not trained: quota checks, warm-ups, titles"
    )
    micro_batch_tokens: int = Field(
        default=2048,
        ge=2,
        description="tokens per forward pass; a longer row passes alone; changes speed and memory only",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="compute activations again for the backward pass: less memory, a third more work"
    )
    keep_checkpoints: int = Field(default=2, ge=1, description="newest checkpoints kept; older ones are deleted")

    @field_validator("leave_out")
    @classmethod
    def _findings_are_known(cls, value: list[str]) -> list[str]:
        if unknown := [code for code in value if code.split(":")[0] not in FINDINGS]:
            raise ValueError(f"there is no finding {unknown[0]}; docs/proxy.md lists them")
        return value


class LimitsConfig(Part):
    """What one sandbox may use."""

    memory_mb: int = Field(default=2048, ge=128, description="memory, MiB")
    cpus: float = Field(default=1.0, gt=0, le=256, description="CPU cores")
    pids: int = Field(default=512, ge=16, description="processes and threads")


class KubernetesConfig(Part):
    """Where the rollouts run in a cluster, and what runs there already; read by the kubernetes profile only.

    The defaults are the names of deploy/kubernetes/base.
    """

    namespace: str = Field(default="openforge", min_length=1, description="namespace of the rollout Jobs")
    images: dict[Harness, _Image] = Field(
        default={"claude_code": "openforge/claude-code:0.1.0", "codex": "openforge/codex:0.1.0"},
        description="container image of each harness",
    )
    sidecar_image: _Image = Field(default="openforge/sidecar:0.1.0", description="image of what runs beside a harness")
    task_image: _Image = Field(
        default="debian:bookworm-slim", description="image in which a task runs that names none of its own"
    )
    proxies: list[_Host] = Field(
        default=["proxy-0.proxy.openforge-system", "proxy-1.proxy.openforge-system"],
        min_length=1,
        description="the proxy's replicas; a rollout has one of them",
    )
    proxy_port: _Port = Field(default=9100, description="the proxies' port for harnesses")
    control_port: _Port = Field(default=9101, description="the proxies' port for this flow")
    policies: list[_Url] = Field(
        default=["http://policy.openforge-system:8200"],
        min_length=1,
        description="the policy servers behind the proxies; each gets every new version of the weights",
    )
    collector_host: _Host | None = Field(
        default=None, description="where pods reach this flow; empty: its own address on the way to the proxies"
    )
    collector_port: _Port = Field(default=9200, description="port on which this flow takes the pods' results")
    service_account: str = Field(
        default="openforge-rollout", description="service account of the rollout pods; no token mounted"
    )
    priority_class: str | None = Field(
        default="openforge-rollout", min_length=1, description="PriorityClass of the pods; empty: the cluster's"
    )
    retry_priority_class: str | None = Field(
        default="openforge-retry", min_length=1, description="PriorityClass of a second try; empty: as the first"
    )
    runtime_class: str | None = Field(
        default=None, description="RuntimeClass of the pods, such as gvisor; empty: the cluster's"
    )
    ttl_s: int = Field(default=600, ge=0, description="seconds that a finished Job is kept")


class RolloutConfig(Part):
    """What a training run and an evaluation have in common: a policy in its harnesses, on tasks, somewhere."""

    run: str | None = Field(default=None, description="name; the same name resumes that run; empty: made from the date")
    profile: Literal["local", "kubernetes"] = Field(default="local", description="where the parts run")
    seed: int = Field(default=0, ge=0, lt=2**31, description="seed of task order, sampling and training")
    runs_dir: str = Field(default="runs", min_length=1, description="folder that holds the runs")

    harnesses: list[Harness] = Field(default=["claude_code", "codex"], min_length=1, description="harnesses to run in")
    tasks: str = Field(default="builtin", min_length=1, description="builtin, a task set's folder, or NAME:FOLDER")
    benchmark: Choices = CHOICES

    model: str = Field(default="tiny", min_length=1, description="tiny, smollm2, or a Hugging Face model folder")
    engine: Literal["embedded", "vllm", "hybrid"] = Field(
        default="embedded", description="policy server; hybrid: the trainer serves what it trains, between its updates"
    )
    engine_replicas: int = Field(
        default=1, ge=1, le=64, description="policy servers with the same weights; a rollout stays with one"
    )
    max_model_len: int = Field(
        default=16_384, ge=256, description="context length in tokens, prompt and reply together"
    )
    max_tokens: int = Field(default=1024, ge=1, description="most tokens sampled per model call")
    temperature: float = Field(default=1.0, gt=0, le=2, description="sampling temperature; training assumes the same")

    concurrency: int = Field(default=2, ge=1, le=10_000, description="rollouts at a time")
    max_turns: int = Field(default=8, ge=1, le=1000, description="turns per rollout; as many side calls besides")
    max_total_tokens: int | None = Field(
        default=None, ge=1, description="most tokens sampled per rollout; empty: as many as its calls may have"
    )
    max_concurrent_calls: int = Field(
        default=16, ge=1, le=1024, description="model calls of one rollout at a time; further ones wait"
    )
    rollout_timeout_s: int = Field(default=300, ge=5, description="seconds until a rollout is ended")
    retries: int = Field(default=2, ge=1, le=10, description="tries per rollout when our own machinery fails")
    continue_cut: bool = Field(
        default=False, description="a try that our own machinery cut is gone on with, where the harness can; local only"
    )
    sandbox: Literal["auto", "runc", "bubblewrap"] = Field(
        default="auto", description="local sandbox; auto takes runc if it works; a cluster has Jobs instead"
    )
    limits: LimitsConfig = LimitsConfig()
    judge: JudgeConfig | None = Field(
        default=None, description="the model that judges tasks with a rubric, refused without one, and a benchmark's"
    )
    kubernetes: KubernetesConfig = KubernetesConfig()

    @model_validator(mode="after")
    def _engine_is_there(self) -> Self:
        if self.engine == "hybrid" and not isinstance(self, RunConfig):
            raise ValueError("engine: hybrid is a trainer that serves, and nothing is trained here; use vllm")
        return self

    @model_validator(mode="after")
    def _cut_is_kept_here(self) -> Self:
        if self.continue_cut and self.profile != "local":
            raise ValueError("continue_cut: what a cut rollout left is kept on this machine only; use profile local")
        return self

    @model_validator(mode="after")
    def _choices_are_about_a_benchmark(self) -> Self:
        if self.benchmark != CHOICES and not is_benchmark(self.tasks):
            raise ValueError(f"benchmark: tasks {self.tasks} is none; leave it out, or give tasks as NAME:FOLDER")
        return self

    @field_validator("run")
    @classmethod
    def _run_is_a_name(cls, value: str | None) -> str | None:
        try:
            return value if value is None else check_name("run", value)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @field_validator("harnesses")
    @classmethod
    def _harnesses_differ(cls, value: list[Harness]) -> list[Harness]:
        if len(set(value)) != len(value):
            raise ValueError("name each harness once")
        return value

    @field_validator("max_tokens")
    @classmethod
    def _reply_fits(cls, value: int, info: Any) -> int:
        context = info.data.get("max_model_len")
        if context is not None and value >= context:
            raise ValueError(f"must be below max_model_len ({context}), which holds the prompt too")
        return value


class RunConfig(RolloutConfig):
    """One training run."""

    tasks_per_epoch: int = Field(default=4, ge=1, le=100_000, description="tasks per epoch")
    group_size: int = Field(
        default=4, ge=2, le=256, description="rollouts of one task; rewards are compared within this group"
    )
    epochs: int = Field(default=2, ge=1, le=10_000, description="rounds of rollouts and update")
    heldout_tasks: int = Field(default=4, ge=0, description="tasks never trained on, for measuring before and after")
    heldout_samples: int = Field(default=2, ge=1, le=256, description="rollouts of each held-out task")
    evaluate_first: bool = Field(default=True, description="measure on the held-out tasks before training")
    evaluate_every: int | None = Field(
        default=None, ge=1, description="measure on the held-out tasks after every so many epochs too; empty: never"
    )
    evaluate_last: bool = Field(default=True, description="measure on the held-out tasks after training")
    loggers: list[Literal["tensorboard", "wandb", "mlflow"]] = Field(
        default=[], description="where the numbers of each epoch go beside the report, through veRL"
    )
    mode: Literal["sync", "async"] = Field(
        default="sync", description="async: later epochs' rollouts run while an epoch trains (training.max_staleness)"
    )
    group_deadline_s: float | None = Field(
        default=None,
        gt=0,
        description="seconds that a group's slower half may take longer; then they are ended, without a reward",
    )
    engine_gpus: int = Field(default=1, ge=1, description="GPUs that share a replica of the policy; hybrid only")
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _hybrid_is_possible(self) -> "RunConfig":
        if self.engine != "hybrid":
            if self.engine_gpus != 1:
                raise ValueError(f"engine_gpus: {self.engine_gpus} is for engine hybrid; leave it out")
            return self
        for field, value, needed in (
            ("training.trainer", self.training.trainer, "main_ppo"),
            ("mode", self.mode, "sync"),
            ("profile", self.profile, "local"),
            ("engine_replicas", self.engine_replicas, 1),
        ):
            if value != needed:
                raise ValueError(f"engine: hybrid serves from the trainer and needs {field} {needed!r}, not {value!r}")
        if self.training.lora_rank and self.training.dtype != "bfloat16":
            raise ValueError(
                "engine: hybrid is given an adapter's merged weights in bfloat16, whatever they are trained in; set"
                " training.dtype bfloat16"
            )
        return self

    @model_validator(mode="after")
    def _overlap_is_possible(self) -> "RunConfig":
        if self.mode == "async" and self.training.max_staleness == 0:
            raise ValueError(
                "mode: async lets rollouts begin before their epoch's weights are there, and "
                "training.max_staleness 0 refuses all of those; make it 1 or more, or mode sync"
            )
        if self.mode == "async" and self.evaluate_every:
            raise ValueError("evaluate_every: its rollouts need weights that stand still; leave it out, or mode sync")
        return self


Config = TypeVar("Config", bound=RolloutConfig)


def load_config(config: dict[str, Any] | RunConfig | None = None) -> RunConfig:
    """A training run's whole configuration; see `load`."""
    return load(RunConfig, config)


def load(kind: type[Config], config: dict[str, Any] | Config | None = None) -> Config:
    """The whole configuration: defaults, then the profile's file as far as it is about this `kind`, then `config`.

    Of a model only the fields that were set count as given. Raises ConfigError with one sentence per problem: the
    field, the value and what to do.
    """
    given = config.model_dump(exclude_unset=True) if isinstance(config, RolloutConfig) else dict(config or {})
    profile = given.get("profile", kind.model_fields["profile"].default)
    file = PROFILES / f"{profile}.toml"
    values = tomllib.loads(file.read_text()) if file.is_file() else {}
    values = {name: value for name, value in values.items() if name in kind.model_fields or kind is RunConfig}
    try:
        return kind.model_validate(_merge(values, given))
    except ValidationError as error:
        raise refusal(error, kind) from None


def refusal(error: ValidationError, kind: type[BaseModel]) -> ConfigError:
    """What `kind` refused, a sentence per problem."""
    return ConfigError("\n".join(_sentence(problem, kind) for problem in error.errors()))


def new_run_name(now: datetime, prefix: str = "run") -> str:
    """The name of a run that was given none, such as `run-20261201-183000`."""
    return now.strftime(f"{prefix}-%Y%m%d-%H%M%S")


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _sentence(problem: ErrorDetails, kind: type[BaseModel]) -> str:
    path = problem["loc"]
    where = ".".join(str(part) for part in path)
    message = problem["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):  # about several fields; it names them
        return f"{where}: {message}." if where else f"{message}."
    if problem["type"] == "extra_forbidden":
        if path[-1] in _NOT_REPRODUCED:
            return (
                f"{where}: {problem['input']!r} is refused: the trainer computes log-probabilities of the whole "
                "distribution after temperature, so a token sampled in another way cannot be trained on; leave it out."
            )
        names = _field_names(kind, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), names, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(names)}."
        return f"{where}: there is no such field; {remedy}"
    if problem["type"] == "missing":  # its input is all that was given around it
        return f"{where}: it is missing, and has no default; give it."
    value = "its value" if path[-1] in _MAY_BE_A_KEY else repr(problem["input"])
    return f"{where}: {value} is refused: {message}."


def _field_names(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        annotation = model.model_fields[str(part)].annotation
        inner = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)
