"""A provider's model as a policy server: token ids in, its turn out as token ids.

So that any model behind an API can work in any harness through the proxy as it is, be measured beside ours, and teach:
the conversation is read back from the prompt's ChatML text and asked in the provider's dialect. As with a script
(`tasks.teacher_server`) the ids come from an encoder: they are for supervised learning and never for a policy update.

    python -m tasks.provider_server --provider '{"base_url": …, "model": …}' --model DIR --port 8200
"""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aiohttp import web
from transformers import AutoTokenizer
from transformers import PreTrainedTokenizerBase

from proxy_addons.conversation import Message
from proxy_addons.conversation import ToolCall
from proxy_addons.errors import InfrastructureError
from tasks.provider import Client
from tasks.provider import Provider
from tasks.provider import Refused
from tasks.teacher_server import completion
from tasks.teacher_server import read_chatml
from tasks.teacher_server import write_turn

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.S)
_CONTROL = re.compile(r"<\|(?=[a-z_]+\|>)")


def with_calls(messages: Sequence[Message]) -> list[Message]:
    """The conversation with its tool calls read from the assistant's text, and each result named after its call."""
    found: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "assistant":
            message = _read_calls(message, len(found))
            waiting = [call.id for call in message.tool_calls]
        elif message.role == "tool":
            message = replace(message, tool_call_id=waiting.pop(0) if waiting else f"call_{len(found)}")
        found.append(message)
    return found


def _read_calls(message: Message, place: int) -> Message:
    """The turn with its calls apart from its text; as it stands if one of them cannot be read."""
    try:
        said = [json.loads(body) for body in _CALL.findall(message.content)]
        named = [(str(each["name"]), json.dumps(each["arguments"], ensure_ascii=False)) for each in said]
    except (KeyError, TypeError, ValueError):
        return message
    calls = tuple(ToolCall(f"call_{place}_{n}", name, arguments) for n, (name, arguments) in enumerate(named))
    return replace(message, content=_CALL.sub("", message.content).strip(), tool_calls=calls)


def as_text(message: Message) -> str:
    """The turn as ChatML. A control token in what a provider wrote would end the turn in the middle: its first mark
    is set apart."""
    plain = _CONTROL.sub("<| ", message.content)
    calls = tuple(replace(call, arguments=_CONTROL.sub("<| ", call.arguments)) for call in message.tool_calls)
    return write_turn(replace(message, content=plain, tool_calls=calls))


def app(tokenizer: PreTrainedTokenizerBase, client: Client) -> web.Application:
    """The server's application: `/health` and `/inference/v1/generate`. What the provider refuses is a 400 with its
    words, what may pass a 503."""

    async def generate(http: web.Request) -> web.Response:
        body = await http.json()
        prompt, params = body["token_ids"], body["sampling_params"]
        messages, tools = read_chatml(str(tokenizer.decode(prompt, skip_special_tokens=False)))
        temperature = params["temperature"]
        try:
            answer = await client.chat(
                with_calls(messages),
                tools,
                max_tokens=min(params["max_tokens"], client.provider.max_tokens),
                temperature=None if temperature == 1.0 else temperature,  # some models take none
            )
        except InfrastructureError as error:
            return web.json_response(
                {"error": {"message": str(error)}}, status=400 if isinstance(error, Refused) else 503
            )
        text = as_text(answer.message)
        if answer.cut:
            text = text.removesuffix("<|im_end|>")
        ids = tokenizer.encode(text, add_special_tokens=False)
        return web.json_response(completion(ids, len(prompt), "length" if answer.cut else "stop"))

    async def health(_: web.Request) -> web.Response:
        return web.json_response({})

    server = web.Application(client_max_size=64 << 20)
    server.add_routes([web.post("/inference/v1/generate", generate), web.get("/health", health)])
    return server


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.provider_server")
    parser.add_argument("--provider", type=Provider.model_validate_json, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(str(args.model), local_files_only=True)
    server = app(tokenizer, Client(args.provider))
    web.run_app(server, host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
