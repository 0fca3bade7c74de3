"""Children that cannot outlive us."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from training.child import start_child

ROOT = Path(__file__).parents[2]
PARENT = """\
import os, sys, time
from pathlib import Path
from training.child import start_child

os.register_at_fork(after_in_child=os.abort)  # some library's
child = start_child(["sleep", "98774"], Path(sys.argv[1]), os.environ)
print(child.process.pid, flush=True)
time.sleep(60)
"""


def test_it_dies_with_its_parent_and_is_no_fork_of_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while child.cmdline() != ["sleep", "98774"]:
        assert child.status() != psutil.STATUS_ZOMBIE, (tmp_path / "log").read_text()
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert psutil.wait_procs([child], timeout=10)[0]


def test_a_program_that_is_not_there_is_said_in_its_log(tmp_path: Path) -> None:
    child = start_child(["/opt/nothing", "--flag"], tmp_path / "log", os.environ)
    assert child.process.wait(10) == 1
    assert child.last_lines() == "/opt/nothing: No such file or directory"
    child.stop()
