"""The test cluster as a process of its own: `python -m tests.kube.server --port 8001 --script '{"name": "exits"}'`.

It prints its address on one line, and serves until it is ended.
"""

import argparse
import asyncio
import json
import signal

from tests.kube import scripts
from tests.kube.cluster import cluster


async def serve(port: int, script: str, capacity: int, nodes: int) -> None:
    arguments = json.loads(script)
    made = getattr(scripts, arguments.pop("name"))(**arguments)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with cluster(made, capacity=capacity, nodes=nodes, port=port) as it:
        print(it.url, flush=True)
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kube.server", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--script", default='{"name": "exits"}', help="what becomes of pods: a function of scripts.py")
    parser.add_argument("--capacity", type=int, default=10_000, help="how many pods the nodes have room for")
    parser.add_argument("--nodes", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.script, options.capacity, options.nodes))


if __name__ == "__main__":
    main()
