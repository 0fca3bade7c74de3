"""O80: a model endpoint at a private address or a cluster's name: no harness with our settings refuses it.

In our sandboxes the endpoint is loopback, so this runs each harness in a network namespace of its own that has the
address, with the scripted model server on it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from tasks import harnesses
from tasks.sandboxes import Spec
from tasks.sandboxes.bubblewrap import Bubblewrap
from tasks.sandboxes.local import Box
from tests.tasks.harnesses import real
from tests.tasks.stub import Stub

NAME, ADDRESS, PORT = "proxy-0.proxy.openforge.svc.cluster.local", "10.0.0.5", 8000


class SharedNetwork(Bubblewrap):
    """A sandbox in the network namespace of this process."""

    def command(self, box: Box) -> list[str]:
        argv = super().command(box)
        argv.insert(argv.index("--unshare-all") + 1, "--share-net")
        return argv


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("host", [ADDRESS, NAME])
@pytest.mark.parametrize("name", real.SHELL)
def test_o80_a_private_address_and_a_cluster_name(name: str, host: str, tmp_path: Path) -> None:
    real.installed(name)
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("a network namespace with an address needs root, ip and unshare")
    network = f"ip link set lo up && ip addr add {ADDRESS}/32 dev lo"
    argv = ["unshare", "--net", "sh", "-c", f'{network} && exec "$@"', "sh"]
    argv += [sys.executable, "-m", __name__, name, host, str(tmp_path)]
    said = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {"exit": "completed", "calls": 2}, said.stdout
    assert (tmp_path / "workspace/made.txt").read_text() == "done\n"


async def run(name: str, host: str, folder: Path) -> None:
    """One run in the namespace; prints how it ended."""
    harness, stub = harnesses.load(name), Stub()
    url, key = f"http://{host}:{PORT}/r/run-e000-task-s00-t0", real.KEY
    for part in ("workspace", "home"):
        (folder / part).mkdir()
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n")
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/r/{tail:.*}", stub.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, PORT).start()
    harness.prepare(folder / "home", url, key, "policy-v1")
    spec = Spec(
        name="test-o80",
        argv=harness.command("Write made.txt.", url, key, "policy-v1"),
        env=harness.env(url, key, "policy-v1"),
        workspace=folder / "workspace",
        home=folder / "home",
        log_dir=folder / "log",
        binds_ro={**harness.binds(real.ROOT), "/etc/hosts": folder / "hosts"},
        wall_s=120,
    )
    outcome = await SharedNetwork().run(spec)
    await runner.cleanup()
    end = harnesses.end(harness, outcome, len(stub.requests), url)
    print(json.dumps({"exit": end.exit if end.exit == "completed" else end.reason, "calls": len(stub.requests)}))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
