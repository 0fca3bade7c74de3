"""The proxy process: mitmproxy's core in reverse mode, the gateway and the control port, in one event loop.

    OPENFORGE_PROXY_TOKEN=… python -m proxy_addons --port 9100 --control-port 9101 --engine http://127.0.0.1:8200 \
        --model DIR

`--engine` may be given several times: policy servers with the same weights (see `replicas`).
"""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import aiohttp
import mitmproxy.proxy.server
from aiohttp import web
from mitmproxy import options
from mitmproxy.addons import core
from mitmproxy.addons import errorcheck
from mitmproxy.addons import next_layer
from mitmproxy.addons import proxyserver
from mitmproxy.addons import tlsconfig
from mitmproxy.master import Master

from proxy_addons.body import MAX_BODY_BYTES
from proxy_addons.capture import Capture
from proxy_addons.control import Control
from proxy_addons.conversation import Message
from proxy_addons.engine import EngineClient
from proxy_addons.errors import ConfigError
from proxy_addons.gateway import Gateway
from proxy_addons.ledger import Ledger
from proxy_addons.live import Live
from proxy_addons.rendering import load_rendering
from proxy_addons.replicas import Replicas
from proxy_addons.stability import describe

IDLE_TIMEOUT_S = 3600
ENGINE_KEEPALIVE_S = 3.0  # vLLM closes an idle connection after 5 s, and a request sent just then is lost
PROBE = Message("user", "Write one line about the weather, in any language, and then stop.")


async def serve(port: int, control_port: int, engines: list[str], model: Path, token: str, confdir: str) -> None:
    """Run until cancelled. Raises OSError if a port is taken."""
    live, ledger = Live(), Ledger()
    rendering = load_rendering(model)
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=ENGINE_KEEPALIVE_S)
        jar = aiohttp.DummyCookieJar()
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, cookie_jar=jar))
        probe = rendering.render([PROBE], ())[0].tolist()
        replicas = Replicas([EngineClient(url, session) for url in engines], probe)
        stack.push_async_callback(replicas.close)
        gateway = Gateway(live, ledger, rendering, replicas.generate)
        streams = await _listen(stack, gateway.app(), 0)
        control = Control(live, ledger, gateway, rendering, await describe(rendering), replicas, token)
        await _listen(stack, control.app(), control_port)
        master = _master(port, confdir, Capture(live, ledger, gateway, ("127.0.0.1", streams)))
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, master.shutdown)
        gc.collect()
        gc.freeze()  # what is loaded now stays: the collector need not look at it again and again
        print(f"proxy: listening on 127.0.0.1:{port}", flush=True)
        await master.run()
    ledger.stop()


async def _listen(stack: contextlib.AsyncExitStack, app: web.Application, port: int) -> int:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    return int(runner.addresses[0][1])


def _master(port: int, confdir: str, capture: Capture) -> Master:
    master = Master(options.Options(listen_host="127.0.0.1", listen_port=port, confdir=confdir), with_termlog=True)
    master.addons.add(
        core.Core(), proxyserver.Proxyserver(), next_layer.NextLayer(), tlsconfig.TlsConfig(), errorcheck.ErrorCheck()
    )
    # Lazy: a connection to the gateway opened early goes stale before the request comes.
    # Patient: mitmproxy's limit on silence would cut a long generation (an option since 12.2, a constant before).
    if "tcp_timeout" in master.options:
        master.options.update(tcp_timeout=IDLE_TIMEOUT_S)
    else:
        mitmproxy.proxy.server.TCP_TIMEOUT = IDLE_TIMEOUT_S
    master.options.update(
        mode=["reverse:http://127.0.0.1:1"],
        connection_strategy="lazy",
        termlog_verbosity="warn",
        body_size_limit=str(MAX_BODY_BYTES),
    )
    master.addons.add(capture)
    return master


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m proxy_addons", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--engine", required=True, action="append", help="a policy server's URL; may be repeated")
    parser.add_argument("--model", type=Path, required=True, help="folder with the policy's tokenizer and config.json")
    args = parser.parse_args()
    token = os.environ.get("OPENFORGE_PROXY_TOKEN", "")
    try:
        if not token:
            raise ConfigError("OPENFORGE_PROXY_TOKEN is not set: the control port needs a token")
        with tempfile.TemporaryDirectory(prefix="openforge-proxy-") as confdir:
            asyncio.run(serve(args.port, args.control_port, args.engine, args.model, token, confdir))
    except (ConfigError, OSError) as error:
        sys.exit(f"proxy: {error}")


if __name__ == "__main__":
    main()
