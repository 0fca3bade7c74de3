"""MCP servers that a task declares, in Harbor's form: programs whose tools the harness offers to the policy.

[[environment.mcp_servers]]
name = "stock"
transport = "stdio"
command = "python3"
args = ["/workspace/stock.py"]
"""

import re
from dataclasses import dataclass
from typing import Any

_NAME = re.compile("[A-Za-z0-9_-]{1,40}")
_FIELDS = ("name", "transport", "command", "args")
_HARBORS_DEFAULT = "sse"


@dataclass(frozen=True)
class McpServer:
    """One server. The harness starts it inside the sandbox, in the workspace, and talks to it over its stdin and
    stdout."""

    name: str
    command: str
    args: tuple[str, ...] = ()


def read(declared: Any) -> tuple[tuple[McpServer, ...], list[str]]:
    """The servers that a task.toml declares, and what is wrong with them, one line each."""
    where = "task.toml: environment.mcp_servers"
    if not isinstance(declared, list) or not all(isinstance(entry, dict) for entry in declared):
        return (), [f"{where} must be tables ([[environment.mcp_servers]])"]
    servers, problems = [], []
    for entry in declared:
        name, command, args = entry.get("name"), entry.get("command"), entry.get("args", [])
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(f"{where}: name must be of at most 40 letters, digits, _ and -, not {name!r}")
            continue
        transport = entry.get("transport", _HARBORS_DEFAULT)
        if transport != "stdio":
            problems.append(f"{where}: transport of {name} must be stdio, a program in the sandbox, not {transport!r}")
            continue
        if not isinstance(command, str) or not command:
            problems.append(f"{where}: command of {name} must be the program to start, not {command!r}")
            continue
        if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
            problems.append(f"{where}: args of {name} must be a list of texts, not {args!r}")
            continue
        problems += [f"{where}: {key} of {name} is not used here; leave it out" for key in entry if key not in _FIELDS]
        servers.append(McpServer(name, command, tuple(args)))
    names = [server.name for server in servers]
    if len(set(names)) < len(names):
        problems.append(f"{where}: two servers have one name")
    return tuple(servers), problems
