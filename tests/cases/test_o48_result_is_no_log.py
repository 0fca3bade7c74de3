"""O48: however much an agent prints, its result comes whole, and the kept output says where it was cut."""

from pathlib import Path

import pytest

from tasks.kube import manifest
from tasks.kube import sidecar
from tests.tasks.kube.processes import real_pods
from tests.tasks.kube.support import spec
from training.child import free_port


async def test_o48_60_mb_and_then_the_result_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "PORT", free_port())
    line = """
        echo first; head -c 60000000 /dev/zero | tr '\\0' x; echo; echo '{"type": "result"}'; echo 42 > answer.txt
    """
    one = spec(tmp_path, argv=("bash", "-c", line), payload=None, binds_ro={})
    async with real_pods(tmp_path) as (c, sandbox):
        outcome = await sandbox.run(one)
        (pod_log,) = {c.requests["get", "pods/log"]}
    assert outcome.exit_code == 0
    assert (one.workspace / "answer.txt").read_text() == "42\n"
    kept = outcome.stdout_path.read_text()
    cut = 60_000_000 + len('first\n\n{"type": "result"}\n') - sidecar.HEAD - sidecar.TAIL
    assert kept.startswith("first\n")
    assert f"\n[openforge: {cut} bytes cut here]\n" in kept
    assert kept.endswith('\n{"type": "result"}\n')
    assert pod_log == 0
