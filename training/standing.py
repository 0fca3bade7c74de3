"""veRL's trainer between two updates: a named, detached actor of Ray, in a namespace of its run.

Its workers, and what they loaded, are its own and end with it. An update asks it what it stands as and goes on with it
only if that is what the update wants to begin from; any other, one that does not answer and one whose worker has died
is ended, and another begins from the checkpoint, with the same weights. Ray is the cluster of RAY_ADDRESS, or our own:
that one ends with the process that started it, however it ends, and the trainer with it.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from training.cpu_platform import register_cpu
from training.job import TrainSettings

ROOT = Path(__file__).parents[1]
NAME = "trainer"
ANSWER_S = 60.0
"""How long a trainer and its workers may take to say that they are there."""
END_S = 60.0
"""How long Ray may take to give back what an ended trainer had."""
_QUEUE = {"name": "TransferQueueController", "namespace": "transfer_queue"}
"""veRL's queue of rows. Its name is the same in every run."""


def connect(namespace: str, settings: TrainSettings, device: str) -> None:
    """Enter the cluster of RAY_ADDRESS, or start a Ray of our own. Does nothing if it was entered already.

    Raises InfrastructureError if there is none.
    """
    env = {
        "PYTHONPATH": str(ROOT),
        "VERL_PLATFORM": "cpu" if device == "cpu" else "nvidia",
        "VERL_USE_EXTERNAL_MODULES": "training.ray_platform,training.recorded,training.replica",
    }
    # A Ray of our own would write a token into the home folder, and run its workers at niceness 15, where rollouts that
    # are made meanwhile leave them nothing.
    ours = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    os.environ.update(ours | os.environ)
    os.environ["VERL_PLATFORM"] = env["VERL_PLATFORM"]
    if device == "cpu":
        register_cpu()
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    if ray.is_initialized():
        if ray.get_runtime_context().namespace == namespace:
            return
        end()
    given: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        shutil.rmtree(_folder(namespace), ignore_errors=True)  # of a process that was killed
        given = {"_temp_dir": str(_folder(namespace)), "include_dashboard": False}
        if device == "cpu":  # slots that veRL asks for: a "GPU" and three CPUs a rank, and four for what stands beside
            given |= {"num_gpus": settings.processes, "num_cpus": 3 * settings.processes + 4}
    about = OmegaConf.create({"actor_rollout_ref": {"actor": {"strategy": settings.strategy}}})
    env = get_ppo_ray_runtime_env(about)["env_vars"] | {"TRANSFER_QUEUE_ENABLE": "1"} | env
    try:
        ray.init(namespace=namespace, runtime_env={"env_vars": env}, **given)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"the cluster of RAY_ADDRESS={os.environ['RAY_ADDRESS']}" if not given else "a Ray of our own"
        raise InfrastructureError(f"main_ppo: {where} did not answer: {line_of(error)}") from error
    # Ray's own handler would abort this process, and `end` would not be called.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def update(begins_as: str, config: Path, metrics: Path, log: Path) -> None:
    """Have the trainer do the update of the configuration in the file `config`, where `metrics` go to another; what
    Ray's processes say goes to `log`.

    It goes on with the trainer that stands as `begins_as`, if there is one. Raises InfrastructureError if it failed,
    and then no trainer stands; ConfigError if another run's is in its way.
    """
    import ray

    with _told(log):
        ray.get(_trainer(begins_as).update.remote(str(config), str(metrics)))


def serve(begins_as: str, config: Path, log: Path) -> list[Any]:
    """Have the trainer serve the policy that `begins_as` names: the handles of its replicas. As `update`, otherwise;
    `config` is read if another trainer has to begin."""
    import ray

    with _told(log):
        trainer = _trainer(begins_as)
        found: list[Any] = ray.get(trainer.serve.remote(str(config)))
        ray.get(trainer.keep.remote(begins_as))
        return found


@contextlib.contextmanager
def _told(log: Path) -> Iterator[None]:
    """What Ray's processes say goes to `log`; its errors become ours, and end the trainer."""
    from ray.exceptions import RayError

    with log.open("w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        try:
            yield
        except RayError as error:
            print(error, file=sys.stderr)
            _end_trainer()
            raise InfrastructureError(f"main_ppo: {line_of(error)}; its log is {log}") from error


def keep(stands_as: str) -> None:
    """The trainer is now what the next update may want to begin from, under that name."""
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(ValueError, RayError):  # it has died since: the next update begins anew
        ray.get(ray.get_actor(NAME).keep.remote(stands_as))


def end() -> None:
    """End the trainer and leave Ray; one of our own ends. Does nothing if it was not entered."""
    if "ray" not in sys.modules:
        return
    import ray

    if not ray.is_initialized():
        return
    folder = _folder(ray.get_runtime_context().namespace)
    if os.environ.get("RAY_ADDRESS"):
        _end_trainer()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def _folder(namespace: str) -> Path:
    """Of a Ray of our own. Short, because Ray makes sockets in it."""
    return Path(tempfile.gettempdir(), namespace)


def _trainer(begins_as: str) -> Any:
    import ray
    from ray.exceptions import RayError

    with contextlib.suppress(ValueError, RayError):  # there is none, it does not answer, or one of its workers
        found = ray.get_actor(NAME)
        if ray.get(found.stands_as.remote(), timeout=ANSWER_S) == begins_as:
            return found
    _end_trainer()
    if not _waited(lambda: _QUEUE not in ray.util.list_named_actors(all_namespaces=True)):
        raise ConfigError(
            "RAY_ADDRESS: another run trains on this cluster, or its trainer stands there, and veRL's queues have the"
            " same name; let it end, or use another cluster"
        )
    return ray.remote(Standing).options(name=NAME, lifetime="detached", num_cpus=1).remote()


def _end_trainer() -> None:
    """End the run's trainer, if there is one, and wait until what it had is free."""
    import ray

    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(NAME))
        _waited(lambda: not ray.util.list_named_actors())


def _waited(done: Callable[[], bool]) -> bool:
    """Whether it was `done` in time."""
    deadline = time.monotonic() + END_S
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def line_of(error: BaseException) -> str:
    """What an error of Ray's comes to. One of what it ran ends with the line that says so, any other begins with it."""
    from ray.exceptions import RayTaskError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if isinstance(error, RayTaskError) else 0]


class Standing:
    """The actor. It is asked one thing at a time."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._stands_as: str | None = None

    def stands_as(self) -> str | None:
        """What `keep` was told; None while nothing has been trained since that is published. Raises RayError if a
        worker or a replica has died."""
        import ray

        if self._stands_as is not None:
            its = [*self._trainer.actor_rollout_wg.workers, *self._trainer.llm_server_manager.server_handles]
            ray.get([each.__ray_ready__.remote() for each in its])
        return self._stands_as

    def keep(self, stands_as: str) -> None:
        """Remember it."""
        self._stands_as = stands_as

    def update(self, config_file: str, metrics: str) -> None:
        """What `TaskRunnerV1.run` of veRL's main_ppo does, by the trainer that stands, if one does."""
        from training.recorded import RecordedManager

        self._stands_as = None
        os.environ["VERL_FILE_LOGGER_PATH"] = metrics
        config = _composed(Path(config_file))
        if self._trainer is None:
            self._begin(config)
        else:
            self._trainer.rest()
            self._trainer.go_on(config)
        self._trainer.fit(RecordedManager.create(config))
        self._trainer.logger.finish(exit_code=0)

    def serve(self, config_file: str) -> list[Any]:
        """The handles of the replicas, which serve the trainer's weights from here on, until the next update."""
        if self._trainer is None:
            self._begin(_composed(Path(config_file)))
        self._trainer.serve()
        return list(self._trainer.llm_server_manager.server_handles)

    def _begin(self, config: Any) -> None:
        import transfer_queue as tq
        from verl.utils.logging_utils import configure_verl_logging

        from training.recorded import RecordedTrainer

        configure_verl_logging()
        tq.init(config.transfer_queue)
        self._trainer = RecordedTrainer(config)
        self._trainer.init()


def _composed(file: Path) -> Any:
    """veRL's whole configuration, as its main_ppo would have it of `file`."""
    from hydra import compose
    from hydra import initialize_config_dir
    from verl.trainer.ppo.utils import need_critic
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import validate_config

    with initialize_config_dir(str(file.parent), version_base=None):
        config = compose(file.stem, overrides=["hydra.searchpath=[pkg://verl.trainer.config]"])
    validate_config(config, need_reference_policy(config), need_critic(config))
    config.transfer_queue.enable = True
    OmegaConf.resolve(config)
    return config
