"""Policy engines: one module each, found here by name. Adding one is adding a file and its name below.

An engine is a server process that speaks a part of vLLM's HTTP surface: `POST /inference/v1/generate` with token ids in
and out, `/health`, `/v1/models`, and for a reload `/pause`, `/collective_rpc` (`reload_weights`),
`/reset_prefix_cache`, `/update_weight_version`, `/weight_info` and `/resume`. The module only says how to start it.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol
from typing import cast

from proxy_addons.errors import ConfigError

NAMES = ("embedded", "vllm")


@dataclass(frozen=True)
class Launch:
    """What to start: `env` is added to the environment; `start_s` is how long it may take to answer `/health`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    start_s: float


class Engine(Protocol):
    """What an engine module offers."""

    def launch(self, model_dir: Path, port: int, max_model_len: int) -> Launch: ...


def load(name: str) -> Engine:
    """The engine module. Raises ConfigError for an unknown name."""
    if name not in NAMES:
        raise ConfigError(f"engine: {name!r} is unknown; use one of {', '.join(NAMES)}")
    return cast(Engine, import_module(f"training.engines.{name}"))
