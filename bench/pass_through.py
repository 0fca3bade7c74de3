"""Two proxies that do nothing but pass a request on, as yardsticks.

python -m bench.pass_through aiohttp|mitmproxy --port 9000 --to http://127.0.0.1:8200
"""

import argparse
import asyncio
import tempfile

import aiohttp
from aiohttp import web
from mitmproxy import http
from mitmproxy import options
from mitmproxy.addons import core
from mitmproxy.addons import next_layer
from mitmproxy.addons import proxyserver
from mitmproxy.addons import tlsconfig
from mitmproxy.master import Master


async def by_aiohttp(port: int, to: str) -> None:
    """Read the body, send it on, read the answer, send it back."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def handle(request: web.Request) -> web.Response:
            body = await request.read()
            async with session.post(
                f"{to}{request.path}", data=body, headers={"content-type": "application/json"}
            ) as r:
                return web.Response(body=await r.read(), status=r.status, content_type="application/json")

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


class Nothing:
    """An addon that looks at every answer and leaves it alone."""

    def response(self, flow: http.HTTPFlow) -> None:
        """As an addon would that has yet to learn to record."""


async def by_mitmproxy(port: int, to: str) -> None:
    """mitmproxy in reverse mode."""
    with tempfile.TemporaryDirectory() as confdir:
        settings = options.Options(listen_host="127.0.0.1", listen_port=port, confdir=confdir, mode=[f"reverse:{to}"])
        master = Master(settings, with_termlog=False)
        master.addons.add(
            core.Core(), proxyserver.Proxyserver(), next_layer.NextLayer(), tlsconfig.TlsConfig(), Nothing()
        )
        await master.run()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.pass_through")
    parser.add_argument("kind", choices=["aiohttp", "mitmproxy"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--to", required=True)
    args = parser.parse_args()
    asyncio.run({"aiohttp": by_aiohttp, "mitmproxy": by_mitmproxy}[args.kind](args.port, args.to))


if __name__ == "__main__":
    main()
