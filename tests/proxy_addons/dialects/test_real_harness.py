"""The real Claude Code and Codex, unmodified, against the dialects with a scripted policy.

They must do the work, and send back exactly the turns that were said: otherwise every turn would open a new branch.
`make harnesses` brings them; OPENFORGE_HARNESSES names another folder whose node_modules holds them.
"""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from PIL import Image

from proxy_addons.conversation import Problem
from proxy_addons.conversation import Reply
from proxy_addons.conversation import Request
from proxy_addons.conversation import ToolCall
from proxy_addons.conversation import Usage
from proxy_addons.conversation import canonical
from proxy_addons.dialects import Dialect
from proxy_addons.dialects import find_route

_DEFAULT = Path(__file__).parents[3] / ".openforge" / "harnesses"
_ROOT = Path(os.environ.get("OPENFORGE_HARNESSES", _DEFAULT)) / "node_modules"
_CLAUDE = _ROOT / "@anthropic-ai/claude-code-linux-x64/claude"
_CODEX = _ROOT / "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

_TASK = "Create out.txt holding hello"
_INSTRUCTIONS = "Solve the task with the shell tool."
_CODEX_CONFIG = """\
model = "{model}"
model_provider = "policy"
model_instructions_file = "{home}/instructions.md"
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
check_for_update_on_startup = false
model_auto_compact_token_limit = 100000
[analytics]
enabled = false
[otel]
metrics_exporter = "none"
[features]
plugins = false
apps = false
remote_plugin = false
unbounded_connection_retries = false
[model_providers.policy]
name = "policy"
base_url = "{url}/v1"
env_key = "POLICY_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
"""

Said = Reply | Problem


@dataclass
class _Policy:
    """Answers call n with the n-th of `script`, after two keep-alives, and remembers what it was asked.

    Sub-agents are told "Hi." and counted apart.
    """

    script: list[Said]
    asked: list[Request] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    sub_agents: list[Request] = field(default_factory=list)
    url: str = ""

    async def answer(self, http: web.Request) -> web.StreamResponse:
        dialect: Dialect
        route = find_route(http.path)
        assert route is not None
        dialect = route.dialect
        request = dialect.parse(await http.json(), http.headers)
        assert request.stream
        said: Said
        if request.agent is not None:
            said = _say(90 + len(self.sub_agents), "Hi.")
            self.sub_agents.append(request)
        else:
            said = self.script[len(self.asked)]
            self.asked.append(request)
        reply_id = said.id if isinstance(said, Reply) else "refused"
        stream = dialect.open_stream(request, reply_id, 1_700_000_000)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        await response.write(stream.start() + stream.keepalive())
        await asyncio.sleep(0.05)
        await response.write(stream.keepalive())
        if isinstance(said, Problem):
            await response.write(stream.error(said))
            return response
        if request.agent is None:
            self.replies.append(said)
        for event in stream.reply(said):
            await response.write(event)
        return response

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/{rest:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()


def _say(number: int, content: str = "", *calls: ToolCall, reasoning: str = "") -> Reply:
    return Reply(
        f"r{number}",
        "policy-v1",
        content,
        reasoning,
        calls,
        "tool_calls" if calls else "stop",
        Usage(1000, 50, 200),
        1_700_000_000,
    )


def _bash(number: int, command: str) -> ToolCall:
    return ToolCall(f"toolu_{number}", "Bash", json.dumps({"command": command, "description": "é"}, indent=1))


def _exec(number: int, command: str) -> ToolCall:
    return ToolCall(f"call_{number}", "exec_command", json.dumps({"cmd": command, "yield_time_ms": 1000}, indent=1))


async def _run(argv: list[str], env: dict[str, str], folder: Path) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder.parent), **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(child.communicate(), 60)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode is not None
    return child.returncode, output.decode()


async def _claude(policy: _Policy, folder: Path) -> tuple[int, str]:
    if not _CLAUDE.exists():
        pytest.skip(f"Claude Code is not at {_CLAUDE}")
    env = {
        "IS_SANDBOX": "1",
        "ANTHROPIC_BASE_URL": policy.url,
        "ANTHROPIC_API_KEY": "key-of-a-test",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_AUTOUPDATER": "1",
    }
    argv = [str(_CLAUDE), "--bare", "-p", _TASK, "--output-format", "json", "--dangerously-skip-permissions"]
    return await _run([*argv, "--model", "policy-v1"], env, folder)


async def _codex(policy: _Policy, folder: Path, model: str = "policy-v1") -> tuple[int, str]:
    if not _CODEX.exists():
        pytest.skip(f"Codex is not at {_CODEX}")
    home = folder.parent / "codex"
    home.mkdir()
    (home / "instructions.md").write_text(_INSTRUCTIONS)
    (home / "config.toml").write_text(_CODEX_CONFIG.format(home=home, url=policy.url, model=model))
    env = {"POLICY_API_KEY": "key-of-a-test", "CODEX_HOME": str(home)}
    argv = [str(_CODEX), "exec", "--json", "--strict-config", "--skip-git-repo-check", "--ephemeral", _TASK]
    return await _run(argv, env, folder)


def _read(number: int, path: str) -> ToolCall:
    return ToolCall(f"toolu_{number}", "Read", json.dumps({"file_path": path}))


def _view(number: int, path: str) -> ToolCall:
    return ToolCall(f"call_{number}", "view_image", json.dumps({"path": path}))


_LOOKS = {"claude": (_claude, _read), "codex": (_codex, _view)}
_HARNESSES = {"claude": (_claude, _bash), "codex": (_codex, _exec)}


@pytest.mark.parametrize("name", _HARNESSES)
async def test_harness_works_and_sends_every_turn_back(name: str, tmp_path: Path) -> None:
    harness, call = _HARNESSES[name]
    policy = _Policy(
        [
            _say(1, "I shall write it — 価格🎉.", call(1, "printf hel > out.txt"), reasoning="First a part."),
            _say(2, "", call(2, "printf lo >> out.txt"), call(3, "false")),
            _say(3, "Two more.", call(4, "cat out.txt"), call(5, "no-such-command")),
            _say(4, "Done.", reasoning="It is there."),
        ]
    )
    folder = tmp_path / "work"
    folder.mkdir()
    async with policy.serve():
        code, output = await harness(policy, folder)
    assert code == 0, output
    assert (folder / "out.txt").read_text() == "hello"
    assert len(policy.asked) == 4
    _assert_every_turn_came_back(policy)
    assert policy.asked[0].agent is None


def _assert_every_turn_came_back(policy: _Policy) -> None:
    for before, reply, after in zip(policy.asked, policy.replies, policy.asked[1:], strict=False):
        expected = [canonical(message) for message in (*before.messages, reply.message())]
        assert [canonical(message) for message in after.messages[: len(expected)]] == expected
        assert after.tools == before.tools
        results = [m.tool_call_id for m in after.messages[len(expected) :] if m.role == "tool"]
        assert results == [call.id for call in reply.tool_calls]
        assert not [message.flags for message in after.messages if "unknown_item" in message.flags]


async def test_codex_applies_a_freeform_patch(tmp_path: Path) -> None:
    """O05: this model name makes Codex offer `apply_patch` as a custom tool; the file shows that its text arrived."""
    patch = '*** Begin Patch\n*** Add File: out.txt\n+say "hel\\lo" — 価格🎉\n+\n+end\n*** End Patch\n'
    call = ToolCall("call_1", "apply_patch", json.dumps({"input": patch}))
    bad = ToolCall("call_2", "apply_patch", '{"patch": "not the argument that it has"}')
    policy = _Policy([_say(1, "", call), _say(2, "", bad), _say(3, "Done.")])
    folder = tmp_path / "work"
    folder.mkdir()
    async with policy.serve():
        code, output = await _codex(policy, folder, model="gpt-5.5")
    assert code == 0, output
    assert (folder / "out.txt").read_text() == 'say "hel\\lo" — 価格🎉\n\nend\n'
    _assert_every_turn_came_back(policy)
    assert "apply_patch" in {tool.name for tool in policy.asked[0].tools if tool.kind == "custom"}


async def test_codex_runs_a_tool_in_a_namespace(tmp_path: Path) -> None:
    """The namespace is back on the wire, and the sub-agent that it starts is told apart by its headers."""
    call = ToolCall("call_1", "multi_agent_v1__spawn_agent", '{"message": "Say hi"}')
    policy = _Policy([_say(1, "", call), _say(2, "", _exec(2, "sleep 1")), _say(3, "Done.")])
    folder = tmp_path / "work"
    folder.mkdir()
    async with policy.serve():
        code, output = await _codex(policy, folder)
    assert code == 0, output
    _assert_every_turn_came_back(policy)
    assert len(policy.sub_agents) == 1
    assert policy.sub_agents[0].messages[-1].content == "Say hi"


@pytest.mark.parametrize("name", _HARNESSES)
async def test_harness_says_when_it_compacts(name: str, tmp_path: Path) -> None:
    """O42: told that its context is full, it asks for a summary and goes on from it; both are recognised."""
    harness, call = _HARNESSES[name]
    full = replace(_say(1, "I shall.", call(1, "printf hello > out.txt")), usage=Usage(990_000, 50))
    policy = _Policy([full, _say(2, "<summary>It is written.</summary>"), _say(3, "Done.")])
    folder = tmp_path / "work"
    folder.mkdir()
    async with policy.serve():
        code, output = await harness(policy, folder)
    assert code == 0, output
    assert [request.notes for request in policy.asked] == [(), ("compaction_request",), ("compaction",)]
    assert "It is written." in policy.asked[2].messages[-1].content
    # Codex offers no tools when it asks for the summary: that must not pass for a side call.
    assert bool(policy.asked[1].tools) == (name == "claude")


@pytest.mark.parametrize("name", _HARNESSES)
async def test_harness_sees_an_error_in_the_stream(name: str, tmp_path: Path) -> None:
    """O17: the error event is not taken for a finished reply."""
    harness, _ = _HARNESSES[name]
    # Claude Code asks once more without a stream, which this server refuses with a 500.
    policy = _Policy([Problem("bad_request", "the policy server said no")])
    folder = tmp_path / "work"
    folder.mkdir()
    async with policy.serve():
        code, output = await harness(policy, folder)
    assert code == 1, output


@pytest.mark.parametrize("name", _LOOKS)
async def test_o02_an_image_that_the_harness_reads_arrives(name: str, tmp_path: Path) -> None:
    """It comes in the answer of the tool, the same in each later request, whole enough to be decoded."""
    harness, look = _LOOKS[name]
    folder = tmp_path / "work"
    folder.mkdir()
    Image.new("RGB", (64, 32), "red").save(folder / "a.png")
    calls = [_say(n, "", look(n, str(folder / "a.png"))) for n in range(2)]
    policy = _Policy([*calls, _say(2, "Red.")])
    async with policy.serve():
        status, output = await harness(policy, folder)
    assert (status, len(policy.asked)) == (0, 3), output
    images = [[i for m in request.messages for i in m.images] for request in policy.asked]
    assert [len(found) for found in images] == [0, 1, 2]
    assert {i.sha256 for found in images for i in found} == {images[1][0].sha256}
    picture = Image.open(io.BytesIO(images[1][0].data)).convert("RGB")
    assert (picture.size, picture.getpixel((5, 5))) == ((64, 32), (255, 0, 0))
