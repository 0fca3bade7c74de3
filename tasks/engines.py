"""The run's policy servers: measured before anything starts, and given new weights together."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from proxy_addons.capability import Capability
from proxy_addons.capability import why_untrainable
from proxy_addons.errors import ConfigError
from tasks.proxies import Proxies
from tasks.proxy import Proxy
from training.policy_server import PolicyServer

CAPABILITY = "capability.json"


async def check_engines(
    proxy: Proxy | Proxies, run_folder: Path, temperature: float, max_model_len: int
) -> list[Capability]:
    """Measure the engines through the proxy and write what was found into the run's folder.

    Raises ConfigError, one line per reason, if training could not use what they sample.
    """
    found = await proxy.capability(max_model_len)
    (run_folder / CAPABILITY).write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    if why := [line for each in found for line in why_untrainable(each, temperature, max_model_len)]:
        raise ConfigError("\n".join(why))
    return found


async def publish(
    proxy: Proxy | Proxies, policies: Sequence[PolicyServer], folder: Path, version: int
) -> dict[str, str]:
    """Serve the weights in `folder` as `version` everywhere: hold the calls, wait for those under way, load, have each
    server show what it serves, let the calls go on. Returns the servers that the proxy leaves out, with the reasons.

    Raises the first server's error if one could not load them; the calls then go on as they were.
    """
    await proxy.pause()
    loaded = await asyncio.gather(*(each.reload(folder, version) for each in policies), return_exceptions=True)
    for error in loaded:
        if isinstance(error, BaseException):
            await proxy.resume()
            raise error
    return await proxy.resume(version)
