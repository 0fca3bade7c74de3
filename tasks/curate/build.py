"""Building: the workspace is made as an agent finds it, and the scripts that will run in it are read by their shell."""

import tempfile
from pathlib import Path

from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from tasks.git_history import fresh_workspace
from tasks.sandboxes import Sandbox
from tasks.sandboxes import Spec
from tasks.sandboxes.capture import last_lines
from tasks.taskset import Task
from tasks.uncancelled import in_thread

_TASK = "/task"
# With -n bash reads and runs nothing.
_READ = f"""\
for script in tests/test.sh solution/solve.sh; do
    bash -n "{_TASK}/$script" || exit 1
done
"""
_WALL_S = 20.0


async def why_dropped(task: Task, sandbox: Sandbox, box: str = "build") -> str | None:
    """Why nothing can be run in `task`; None if it can. The sandbox's name starts with `box`, for `reap`.

    Raises InfrastructureError if the sandbox is lost.
    """
    with tempfile.TemporaryDirectory(prefix="openforge-build-") as temporary:
        place = Path(temporary)
        try:
            await in_thread(fresh_workspace, task.environment, place / "workspace")
        except ConfigError as error:
            return f"no_workspace: {error}"
        except OSError as error:
            return f"no_workspace: it cannot be copied: {error.strerror}"
        (place / "home").mkdir()
        outcome = await sandbox.run(
            Spec(
                name=f"{box}-{task.id}",
                argv=("bash", "-c", _READ),
                env={},
                workspace=place / "workspace",
                home=place / "home",
                log_dir=place / "logs",
                binds_ro={f"{_TASK}/{name}": task.folder / name for name in ("tests", "solution")},
                wall_s=_WALL_S,
                image=task.image,
            )
        )
        if outcome.reason == "lost":
            raise InfrastructureError(f"the sandbox in which {task.id} is built was lost: {outcome.detail}")
        if outcome.reason != "exited":
            return f"not_built: {outcome.reason}, {outcome.detail}"
        if outcome.exit_code:
            return f"not_a_script: {last_lines(outcome.stderr_path, 1, 200)}"
    return None
