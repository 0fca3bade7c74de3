"""The egress port as programs in a sandbox see it: real mitmproxy, real sockets, real TLS."""

import asyncio
import base64
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from transformers import AutoTokenizer

from proxy_addons.egress import MAX_FINDINGS
from tests.support.recording import Recording
from tests.support.recording import recording
from tests.support.scripted_engine import ScriptedEngine
from tests.support.scripted_engine import serving

ASK = {"model": "gpt-5", "messages": [{"role": "user", "content": "do it"}]}
CHAT = "https://api.openai.com/v1/chat/completions"


@dataclass
class Outside:
    """A server that is not ours. `seen` are the headers of the requests that it got."""

    port: int = 0
    connections: int = 0
    seen: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, http: web.Request) -> web.Response:
        self.seen.append(dict(http.headers))
        return web.Response(text=f"you said {await http.text()}")


@asynccontextmanager
async def outside(certificate: Path | None = None) -> AsyncIterator[Outside]:
    there = Outside()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", there.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    context = None
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    there.port = runner.addresses[0][1]
    assert runner.server is not None
    try:
        yield there
        there.connections = runner.server.requests_count
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's key and certificate for `localhost`, signed by nobody else."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    names = "subjectAltName=DNS:localhost"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*request, "-addext", names, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that this process looks up to connect to them."""
    names: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **more: Any) -> Any:
        names.append(str(host))
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


@asynccontextmanager
async def running(toy_model: Path, folder: Path, trust: Path | None = None) -> AsyncIterator[tuple[Recording, Any]]:
    """A proxy before an engine that says "Done."."""
    tokenizer = AutoTokenizer.from_pretrained(str(toy_model))
    done = tokenizer.encode("Done.<|im_end|>", add_special_tokens=False)
    async with (
        serving(ScriptedEngine(lambda prompt, n: done)) as engine,
        recording(toy_model, engine.url, folder, trust=trust) as proxy,
    ):
        yield proxy, engine


class Http2(ssl.SSLContext):
    """Offers HTTP/2 alone; httpx would offer HTTP/1.1 before it."""

    def set_alpn_protocols(self, _: Any) -> None:
        super().set_alpn_protocols(["h2"])


async def through(proxy: Recording, rollout: str, http2: bool = False) -> httpx.AsyncClient:
    """A client as in a sandbox: the proxy from its environment, the certificates from the file it was given."""
    context = (Http2 if http2 else ssl.SSLContext)(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=(await proxy.control.get("/trusted.pem")).text)
    address = f"http://{rollout}:{proxy.keys[rollout]}@127.0.0.1:{proxy.egress}"
    return httpx.AsyncClient(proxy=address, verify=context, http2=http2, timeout=20)


async def raw(proxy: Recording, *pieces: bytes) -> bytes:
    """What the egress port answers to these bytes, each sent after an answer to the one before, until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.egress)
    answer = b""
    for piece in pieces:
        writer.write(piece)
        answer += await asyncio.wait_for(reader.read(65536), 10)
    writer.write_eof()
    answer += await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


def credentials(proxy: Recording, rollout: str) -> bytes:
    shown = base64.b64encode(f"{rollout}:{proxy.keys[rollout]}".encode())
    return b"Proxy-Authorization: Basic " + shown + b"\r\n"


@pytest.mark.parametrize("http2", [False, True])
async def test_a_models_host_is_answered_and_recorded_as_one_chain(
    toy_model: Path, tmp_path: Path, looked_up: list[str], http2: bool
) -> None:
    async with running(toy_model, tmp_path) as (proxy, engine):
        rollout = await proxy.register()
        async with await through(proxy, rollout, http2=http2) as client:
            first = await client.post(CHAT, json=ASK, headers={"authorization": "Bearer sk-of-somebody"})
            reply = first.json()["choices"][0]["message"]
            more = [*ASK["messages"], reply, {"role": "user", "content": "and now?"}]
            second = await client.post(CHAT, json={**ASK, "messages": more, "stream": True})
            models = await client.get("https://api.openai.com/v1/models")
        summary, rows = await proxy.end(rollout)
    assert first.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
    assert reply["content"] == "Done."
    assert second.text.endswith("data: [DONE]\n\n")
    assert models.json()["data"][0]["id"] == "policy-v1"
    assert [(row["chain"], row["parent_call"], row["status"], row["model"]) for row in rows] == [
        ("c0", None, "ok", "gpt-5"),
        ("c0", 0, "ok", "gpt-5"),
    ]
    assert (summary["complete"], summary["findings"]) == (True, [])
    assert len(engine.asked) == 2
    assert looked_up == []


async def test_a_host_that_the_task_names_is_answered_as_a_model_too(toy_model: Path, tmp_path: Path) -> None:
    async with running(toy_model, tmp_path) as (proxy, _):
        rollout = await proxy.register(model_hosts=("*.models.internal",))
        async with await through(proxy, rollout) as client:
            answer = await client.post("https://eu.models.internal/v1/chat/completions", json=ASK)
            plain = await client.post("http://us.models.internal/v1/chat/completions", json=ASK)
        _, rows = await proxy.end(rollout)
    assert (answer.status_code, plain.status_code, len(rows)) == (200, 200, 2)


async def test_a_websocket_is_refused_with_426(toy_model: Path, tmp_path: Path) -> None:
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    async with running(toy_model, tmp_path) as (proxy, _):
        rollout = await proxy.register()
        async with await through(proxy, rollout) as client:
            answer = await client.get("https://api.openai.com/v1/responses", headers=upgrade)
            after = await client.post(CHAT, json=ASK)
        await proxy.end(rollout)
    assert (answer.status_code, after.status_code) == (426, 200)


@pytest.mark.parametrize("shown", [("r-e001-toy-s00-t0", "wrong"), ("r-e001-other-s00-t0", "secret-key-of-toy"), None])
async def test_without_a_live_rollout_and_its_key_nothing_is_said(
    toy_model: Path, tmp_path: Path, shown: tuple[str, str] | None, looked_up: list[str]
) -> None:
    header = b""
    if shown:
        header = b"Proxy-Authorization: Basic " + base64.b64encode(":".join(shown).encode()) + b"\r\n"
    async with running(toy_model, tmp_path) as (proxy, engine), outside() as there:
        rollout = await proxy.register(allow_hosts=("127.0.0.1",))
        for target in (b"CONNECT api.openai.com:443", f"CONNECT 127.0.0.1:{there.port}".encode()):
            answer = await raw(proxy, target + b" HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 407 ")
            assert b'Basic realm="openforge"' in answer
        plain = f"GET http://127.0.0.1:{there.port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n".encode()
        assert (await raw(proxy, plain + header + b"\r\n")).startswith(b"HTTP/1.1 407 ")
        summary, _ = await proxy.end(rollout)
    assert (engine.asked, there.seen, summary["findings"]) == ([], [], [])
    assert looked_up == []


async def test_a_refused_host_is_recorded_and_not_even_looked_up(
    toy_model: Path, tmp_path: Path, looked_up: list[str]
) -> None:
    async with running(toy_model, tmp_path) as (proxy, _), outside() as there:
        rollout = await proxy.register(allow_hosts=("mirror.example",))
        async with await through(proxy, rollout) as client:
            for _ in range(2):
                with pytest.raises(httpx.ProxyError, match="403"):
                    await client.get("https://Telemetry.example/")
            with pytest.raises(httpx.ProxyError, match="403"):
                await client.get(f"https://127.0.0.1:{there.port}/")
            plain = await client.get(f"http://127.0.0.1:{there.port}/")
        summary, _ = await proxy.end(rollout)
    assert plain.status_code == 403
    assert plain.json()["error"]["message"].startswith("egress: this rollout may not reach 127.0.0.1;")
    assert summary["findings"] == ["egress_refused:127.0.0.1", "egress_refused:telemetry.example"]
    assert (there.seen, there.connections) == ([], 0)
    assert looked_up == []


async def test_an_agent_cannot_fill_the_record_with_hosts(toy_model: Path, tmp_path: Path) -> None:
    async with running(toy_model, tmp_path) as (proxy, _):
        rollout = await proxy.register()
        async with await through(proxy, rollout) as client:
            for n in range(MAX_FINDINGS + 5):
                await client.get(f"http://h{n:02}.example/")
        summary, _ = await proxy.end(rollout)
    assert len(summary["findings"]) == MAX_FINDINGS + 1
    assert "egress_refused:(more hosts)" in summary["findings"]


async def test_an_allowed_host_is_reached_end_to_end(
    toy_model: Path, tmp_path: Path, certificate: Path, looked_up: list[str]
) -> None:
    """The client sees the host's own certificate, which nobody but the file given by `--trust` vouches for."""
    async with running(toy_model, tmp_path, certificate) as (proxy, engine), outside(certificate) as there:
        rollout = await proxy.register(allow_hosts=("localhost",))
        async with await through(proxy, rollout) as client:
            answer = await client.post(f"https://localhost:{there.port}/x", content=b"hello")
            stream = answer.extensions["network_stream"]
            shown = stream.get_extra_info("ssl_object").getpeercert(binary_form=True)
        summary, rows = await proxy.end(rollout)
    assert answer.text == "you said hello"
    assert ssl.DER_cert_to_PEM_cert(shown) in certificate.read_text()
    assert (summary["findings"], rows, engine.asked) == (["egress_passed:localhost"], [], [])
    assert looked_up == ["localhost"]


async def test_an_allowed_host_over_plain_http_never_sees_the_key(toy_model: Path, tmp_path: Path) -> None:
    async with running(toy_model, tmp_path) as (proxy, _), outside() as there:
        rollout = await proxy.register(allow_hosts=("127.0.0.1",))
        async with await through(proxy, rollout) as client:
            answer = await client.post(f"http://127.0.0.1:{there.port}/x", content=b"hello")
        summary, _ = await proxy.end(rollout)
    assert answer.text == "you said hello"
    assert summary["findings"] == ["egress_passed:127.0.0.1"]
    assert "proxy-authorization" not in {name.lower() for name in there.seen[0]}
    assert proxy.keys[rollout] not in json.dumps(there.seen)


@pytest.mark.parametrize(("trusted", "status"), [(True, b"200"), (False, b"502")])
async def test_tls_that_the_proxy_speaks_itself_is_verified(
    toy_model: Path, tmp_path: Path, certificate: Path, trusted: bool, status: bytes
) -> None:
    """Some programs ask a proxy for https:// without a tunnel; then it is for the proxy to check the certificate."""
    trust = certificate if trusted else None
    async with running(toy_model, tmp_path, trust) as (proxy, _), outside(certificate) as there:
        rollout = await proxy.register(allow_hosts=("localhost",))
        ask = f"GET https://localhost:{there.port}/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
        answer = await raw(proxy, ask + credentials(proxy, rollout) + b"\r\n")
        await proxy.end(rollout)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert len(there.seen) == int(trusted)


async def test_what_is_no_http_in_a_models_tunnel_goes_nowhere(
    toy_model: Path, tmp_path: Path, looked_up: list[str]
) -> None:
    async with running(toy_model, tmp_path) as (proxy, engine):
        rollout = await proxy.register()
        connect = b"CONNECT api.openai.com:443 HTTP/1.1\r\nHost: x\r\n" + credentials(proxy, rollout) + b"\r\n"
        answer = await raw(proxy, connect, b"SSH-2.0-x\r\n\0\1\2")
        await proxy.end(rollout)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")
    assert (engine.asked, looked_up) == ([], [])


async def test_a_tunnel_ends_with_its_rollout(toy_model: Path, tmp_path: Path) -> None:
    async with running(toy_model, tmp_path) as (proxy, engine):
        rollout = await proxy.register()
        async with await through(proxy, rollout) as client:
            assert (await client.post(CHAT, json=ASK)).status_code == 200
            await proxy.end(rollout)
            ended = await client.post(CHAT, json=ASK)
            await proxy.register()  # the same id again, another life
            another = await client.post(CHAT, json=ASK)
    assert (ended.status_code, another.status_code) == (401, 401)
    assert "has ended" in ended.text
    assert len(engine.asked) == 1


async def test_the_prefix_is_served_on_this_port_too(toy_model: Path, tmp_path: Path) -> None:
    async with running(toy_model, tmp_path) as (proxy, _):
        rollout = await proxy.register()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.egress}/r/{rollout}") as client:
            refused = await client.post("/v1/chat/completions", json=ASK)
            client.headers["authorization"] = f"Bearer {proxy.keys[rollout]}"
            answer = await client.post("/v1/chat/completions", json=ASK)
        _, rows = await proxy.end(rollout)
    assert (refused.status_code, answer.status_code, len(rows)) == (401, 200, 1)


async def test_o77_no_key_in_records_logs_or_errors(
    toy_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the rollout's key nor one that the harness has for the real API."""
    own = "sk-ant-of-somebody-0123456789"
    caplog.set_level("DEBUG")
    async with running(toy_model, tmp_path) as (proxy, engine):
        rollout = await proxy.register()
        key = proxy.keys[rollout]
        body = {**ASK, "messages": [{"role": "user", "content": f"HTTPS_PROXY=http://{rollout}:{key}@127.0.0.1:8080"}]}
        async with await through(proxy, rollout) as client:
            headers = {"x-api-key": own, "authorization": f"Bearer {own}", "cookie": f"session={own}"}
            answer = await client.post(f"{CHAT}?key={own}", headers=headers, json=body)
            for host in (f"{key}.example", f"{key.upper()}.example"):
                with pytest.raises(httpx.ProxyError):
                    await client.get(f"https://{host}/")
        summary, rows = await proxy.end(rollout)
    assert answer.status_code == 200
    assert summary["findings"] == ["egress_refused:[rollout key].example"]
    # httpx and its parts are the harness here: what they log is not ours.
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore", "hpack"))]
    said = json.dumps([summary, rows, engine.asked, ours], default=str) + "".join(capfd.readouterr())
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (key, own, base64.b64encode(f"{rollout}:{key}".encode()).decode()):
        assert secret not in said
        assert secret.encode() not in stored


async def test_a_wrong_pattern_is_refused_when_the_rollout_is_registered(toy_model: Path, tmp_path: Path) -> None:
    async with running(toy_model, tmp_path) as (proxy, _):
        with pytest.raises(AssertionError, match="without a port"):
            await proxy.register(allow_hosts=("mirror.example:443",))
