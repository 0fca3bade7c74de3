"""Starts one of ClawEval's services on a unix socket: python launch.py SOCKET PROGRAM [ARGUMENTS]

The program is run as it is; only where uvicorn listens is another place. It ends with whoever started it.
"""

import ctypes
import os
import runpy
import signal
import sys
from typing import Any

import uvicorn

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    socket, program = sys.argv[1], sys.argv[2]
    serve = uvicorn.run

    def on_socket(app: Any, **given: Any) -> None:
        serve(app, uds=socket, log_level="warning", loop=given.get("loop", "auto"))

    uvicorn.run = on_socket
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


main()
