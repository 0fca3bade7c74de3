"""The proxy process: mitmproxy's core in reverse mode, the gateway and the control port, in one event loop.

    OPENFORGE_PROXY_TOKEN=… python -m proxy_addons --port 9100 --control-port 9101 --engine http://127.0.0.1:8200 \
        --model DIR
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

from proxy_addons.capture import Capture
from proxy_addons.control import Control
from proxy_addons.engine import EngineClient
from proxy_addons.errors import ConfigError
from proxy_addons.gateway import Gateway
from proxy_addons.ledger import Ledger
from proxy_addons.live import Live
from proxy_addons.rendering import load_rendering

LOOPBACK = "127.0.0.1"
IDLE_TIMEOUT_S = 3600
MAX_BODY = "64m"


async def serve(
    port: int, control_port: int, engine: str, model: Path, token: str, confdir: str, host: str = LOOPBACK
) -> None:
    """Run until cancelled. Raises OSError if a port is taken."""
    live, ledger = Live(), Ledger()
    rendering = load_rendering(model)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        client = EngineClient(engine, session)
        gateway = Gateway(live, ledger, rendering, client.generate)
        streams = await _listen(stack, gateway.app(), LOOPBACK, 0)
        control = Control(live, ledger, gateway, rendering, token)
        await _listen(stack, control.app(), host, control_port)
        master = _master(host, port, confdir, Capture(live, ledger, gateway, (LOOPBACK, streams)))
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, master.shutdown)
        gc.collect()
        gc.freeze()  # what is loaded now stays: the collector need not look at it again and again
        print(f"proxy: listening on {host}:{port}", flush=True)
        await master.run()
    ledger.stop()


async def _listen(stack: contextlib.AsyncExitStack, app: web.Application, host: str, port: int) -> int:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port)
    await site.start()
    return int(runner.addresses[0][1])


def _master(host: str, port: int, confdir: str, capture: Capture) -> Master:
    master = Master(options.Options(listen_host=host, listen_port=port, confdir=confdir), with_termlog=True)
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
        body_size_limit=MAX_BODY,
    )
    master.addons.add(capture)
    return master


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m proxy_addons", description=__doc__)
    parser.add_argument(
        "--host", default=LOOPBACK, help="address to listen at; another than loopback only in a cluster"
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--engine", required=True, help="the policy server's URL")
    parser.add_argument("--model", type=Path, required=True, help="folder with the policy's tokenizer and config.json")
    args = parser.parse_args()
    token = os.environ.get("OPENFORGE_PROXY_TOKEN", "")
    try:
        if not token:
            raise ConfigError("OPENFORGE_PROXY_TOKEN is not set: the control port needs a token")
        with tempfile.TemporaryDirectory(prefix="openforge-proxy-") as confdir:
            asyncio.run(serve(args.port, args.control_port, args.engine, args.model, token, confdir, args.host))
    except (ConfigError, OSError) as error:
        sys.exit(f"proxy: {error}")


if __name__ == "__main__":
    main()
