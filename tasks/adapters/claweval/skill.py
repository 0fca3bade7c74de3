"""A task's tools, described as commands in a SKILL.md, or as an MCP server tells them."""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tasks.adapters.claweval.sheet import Tool

PLACE = "skills/claw-tools"
"""Where the tools are described and started, in the workspace."""
LISTING = "tools.json"
"""What `tool.py` tells as an MCP server."""


def skill(tools: Sequence[Tool]) -> str:
    """A SKILL.md that describes tools as commands."""
    command = f"python3 /workspace/{PLACE}/tool.py"
    parts = [
        "---\nname: claw-tools\ndescription: Commands for this task's services ("
        f"{', '.join(tool.name for tool in tools)})\n---\n",
        f"# Commands\n\nRun `{command} NAME 'JSON'`. JSON holds the arguments; the answer is JSON on standard output.\n"
        "An exit status other than 0 is an error, and the answer says which.\n",
    ]
    for tool in tools:
        properties = tool.input_schema.get("properties") or {}
        required = set(tool.input_schema.get("required") or ())
        lines = [
            f"- `{name}` ({_type(field)}{', required' if name in required else ''})"
            for name, field in properties.items()
        ]
        parts.append(
            "\n".join([f"## {tool.name}\n", tool.description.strip(), "", *(lines or ["No arguments."])]) + "\n"
        )
    return "\n".join(parts)


def listing(tools: Sequence[Tool]) -> str:
    """The tools as MCP's `tools/list` has them, as JSON."""
    return json.dumps(
        [
            {
                "name": tool.name,
                "description": tool.description.strip(),
                "inputSchema": {"type": "object", "properties": {}} | tool.input_schema,
            }
            for tool in tools
        ],
        ensure_ascii=False,
    )


def _type(field: Mapping[str, Any]) -> str:
    described = f": {field['description']}" if field.get("description") else ""
    default = f", default {json.dumps(field['default'], ensure_ascii=False)}" if "default" in field else ""
    choice = f", one of {', '.join(map(str, field['enum']))}" if field.get("enum") else ""
    return f"{field.get('type', 'any')}{choice}{default}{described}"
