"""The proxy process: mitmproxy's core in reverse mode, the gateway and the control port, in one event loop.

    OPENFORGE_PROXY_TOKEN=… python -m proxy_addons --port 9100 --control-port 9101 --engine http://127.0.0.1:8200 \
        --model DIR [--egress-port 9102]

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

import mitmproxy.proxy.server
import uvloop
from aiohttp import web
from mitmproxy import http
from mitmproxy import options
from mitmproxy.addons import core
from mitmproxy.addons import errorcheck
from mitmproxy.addons import next_layer
from mitmproxy.addons import proxyserver
from mitmproxy.addons import tlsconfig
from mitmproxy.master import Master

from proxy_addons.addons import Addons
from proxy_addons.body import MAX_BODY_BYTES
from proxy_addons.capture import Capture
from proxy_addons.control import Control
from proxy_addons.conversation import Message
from proxy_addons.egress import Egress
from proxy_addons.egress import trusted_certificates
from proxy_addons.engine import EngineClient
from proxy_addons.errors import ConfigError
from proxy_addons.gateway import Gateway
from proxy_addons.ledger import Ledger
from proxy_addons.live import Live
from proxy_addons.rendering import load_rendering
from proxy_addons.replicas import Replicas
from proxy_addons.stability import describe
from proxy_addons.wire import Connections

LOOPBACK = "127.0.0.1"
IDLE_TIMEOUT_S = 3600
PROBE = Message("user", "Write one line about the weather, in any language, and then stop.")


class Started:
    """mitmproxy's hook for the moment when all its ports are open."""

    def __init__(self, control: Control, line: str) -> None:
        self._control = control
        self._line = line

    def running(self) -> None:
        """Say so, on standard output and by the control port."""
        self._control.listening = True
        print(self._line, flush=True)


async def serve(
    port: int,
    control_port: int,
    engines: list[str],
    model: Path,
    token: str,
    confdir: str,
    egress_port: int | None = None,
    trust: Path | None = None,
    host: str = LOOPBACK,
) -> None:
    """Run until cancelled. Raises OSError if a port is taken."""
    live, ledger = Live(), Ledger()
    rendering = load_rendering(model)
    async with contextlib.AsyncExitStack() as stack:
        connections = await stack.enter_async_context(Connections())
        probe = rendering.render([PROBE], ())[0].tolist()
        replicas = Replicas([EngineClient(url, connections) for url in engines], probe)
        stack.push_async_callback(replicas.close)
        gateway = Gateway(live, ledger, rendering, replicas.generate)
        streams = (LOOPBACK, await _listen(stack, gateway.app(), LOOPBACK, 0))
        capture = Capture(live, ledger, gateway, streams)
        master = _master(host, port, egress_port, confdir, capture, Egress(live, streams, capture.admit))
        trusted = trusted_certificates(Path(confdir), trust)
        master.options.update(ssl_verify_upstream_trusted_ca=str(trusted))
        template = await describe(rendering) | {"model": str(model.absolute())}
        control = Control(live, ledger, gateway, rendering, template, replicas, token, trusted)
        await _listen(stack, control.app(), host, control_port)
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, master.shutdown)
        gc.collect()
        gc.freeze()  # what is loaded now stays: the collector need not look at it again and again
        gc.set_threshold(5_000, 20)  # a call makes hundreds of objects that are gone with it
        egress = f", as an HTTP proxy on {host}:{egress_port}" if egress_port else ""
        master.addons.add(Started(control, f"proxy: listening on {host}:{port}{egress}"))
        await master.run()
    ledger.stop()


async def _listen(stack: contextlib.AsyncExitStack, app: web.Application, host: str, port: int) -> int:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port)
    await site.start()
    return int(runner.addresses[0][1])


def _master(host: str, port: int, egress_port: int | None, confdir: str, capture: Capture, egress: Egress) -> Master:
    master = Master(options.Options(listen_host=host, listen_port=port, confdir=confdir), with_termlog=True)
    log = master.addons.chain
    # mitmproxy checks the types of its own requests and responses by exceptions, eight a call; their tracebacks hold on
    # to the body until the garbage collector comes.
    http.MessageData.__post_init__ = lambda _: None  # type: ignore[method-assign]
    master.addons = Addons(master)
    master.addons.add(
        *log,
        core.Core(),
        proxyserver.Proxyserver(),
        egress,  # before NextLayer, which would look into what must pass untouched
        next_layer.NextLayer(),
        tlsconfig.TlsConfig(),
        errorcheck.ErrorCheck(),
    )
    # Lazy: a connection to the gateway opened early goes stale before the request comes.
    # Patient: mitmproxy's limit on silence would cut a long generation (an option since 12.2, a constant before).
    if "tcp_timeout" in master.options:
        master.options.update(tcp_timeout=IDLE_TIMEOUT_S)
    else:
        mitmproxy.proxy.server.TCP_TIMEOUT = IDLE_TIMEOUT_S
    modes = ["reverse:http://127.0.0.1:1", *([f"regular@{host}:{egress_port}"] if egress_port else [])]
    master.options.update(
        mode=modes,
        connection_strategy="lazy",
        termlog_verbosity="warn",
        body_size_limit=str(MAX_BODY_BYTES),
        confdir=confdir,  # again, with its value of before: only now is there an addon that makes the CA in it
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
    parser.add_argument("--engine", required=True, action="append", help="a policy server's URL; may be repeated")
    parser.add_argument("--egress-port", type=int, help="listen there as an HTTP proxy (CONNECT)")
    trust = "PEM file of further authorities, for the hosts that egress lets through (default: $SSL_CERT_FILE)"
    parser.add_argument("--trust", type=Path, default=os.environ.get("SSL_CERT_FILE"), help=trust)
    parser.add_argument("--model", type=Path, required=True, help="folder with the policy's tokenizer and config.json")
    args = parser.parse_args()
    token = os.environ.get("OPENFORGE_PROXY_TOKEN", "")
    try:
        if not token:
            raise ConfigError("OPENFORGE_PROXY_TOKEN is not set: the control port needs a token")
        with tempfile.TemporaryDirectory(prefix="openforge-proxy-") as confdir:
            ports = {"port": args.port, "control_port": args.control_port, "egress_port": args.egress_port}
            uvloop.run(
                serve(
                    **ports,
                    engines=args.engine,
                    model=args.model,
                    token=token,
                    confdir=confdir,
                    trust=args.trust,
                    host=args.host,
                )
            )
    except (ConfigError, OSError) as error:
        sys.exit(f"proxy: {error}")


if __name__ == "__main__":
    main()
