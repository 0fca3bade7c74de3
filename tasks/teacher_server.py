"""A script as a policy server: token ids in, the script's turn out as token ids.

The script is the teacher of the built-in tasks, or one that guesses (`tasks.guesser`), to see an evaluation's floor.
It reads the conversation back from the prompt's ChatML text, so that the proxy and the harness in front of it work as
they do with a policy, and the records are the same. Its ids come from an encoder, as any scripted text's must: they
are for supervised learning, and `logprob_kind` "scripted" keeps them out of a policy update.

    python -m tasks.teacher_server --model DIR --port 8200 [--script guesser]
"""

import argparse
import json
import re
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer
from transformers import PreTrainedTokenizerBase

from proxy_addons.conversation import Message
from proxy_addons.conversation import Tool
from tasks.guesser import guesser_turn
from tasks.teacher import teacher_turn

Turn = Callable[[Sequence[Message], Sequence[Tool]], Message]
SCRIPTS: dict[str, Turn] = {"teacher": teacher_turn, "guesser": guesser_turn}

_TURN = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)<\|im_end\|>", re.S)
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.S)
_ANSWER = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.S)


def read_chatml(text: str) -> tuple[list[Message], list[Tool]]:
    """Messages and tools of a ChatML prompt with Hermes tools. Assistant turns keep their text as it stands."""
    messages: list[Message] = []
    tools: list[Tool] = []
    for role, body in _TURN.findall(text):
        if role == "system" and (listed := _TOOLS.search(body)):
            functions = [json.loads(line)["function"] for line in listed[1].splitlines()]
            tools = [Tool(f["name"], f["description"], f["parameters"]) for f in functions]
        answers = _ANSWER.findall(body) if role == "user" else []
        messages += [Message("tool", answer) for answer in answers] or [Message(role, body)]
    return messages, tools


def write_turn(message: Message) -> str:
    """An assistant turn as ChatML text, its end included."""
    calls = [
        f'<tool_call>\n{{"name": "{c.name}", "arguments": {c.arguments}}}\n</tool_call>' for c in message.tool_calls
    ]
    return "\n".join([*([message.content] if message.content else []), *calls]) + "<|im_end|>"


def app(tokenizer: PreTrainedTokenizerBase, turn: Turn = teacher_turn) -> web.Application:
    """The server's application: `/health` and `/inference/v1/generate`."""

    async def generate(http: web.Request) -> web.Response:
        body = await http.json()
        messages, tools = read_chatml(str(tokenizer.decode(body["token_ids"], skip_special_tokens=False)))
        ids = tokenizer.encode(write_turn(turn(messages, tools)), add_special_tokens=False)
        return web.json_response(completion(ids, len(body["token_ids"])))

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    server = web.Application(client_max_size=64 << 20)
    server.add_routes([web.post("/inference/v1/generate", generate), web.get("/health", health)])
    return server


def completion(ids: list[int], prompt_tokens: int, finish: str = "stop") -> dict[str, Any]:
    """A whole answer in the engine's shape. The logprobs are 0: a script is certain."""
    choice = {
        "index": 0,
        "token_ids": ids,
        "finish_reason": finish,
        "logprobs": {"content": [{"token_id": i, "logprob": 0.0} for i in ids]},
        "logprob_kind": "scripted",
    }
    return {"choices": [choice], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": len(ids)}}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.teacher_server")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--script", choices=SCRIPTS, default="teacher")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(str(args.model), local_files_only=True)
    web.run_app(app(tokenizer, SCRIPTS[args.script]), host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
