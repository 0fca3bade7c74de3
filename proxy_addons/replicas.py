"""Several policy servers with the same weights, as one engine.

A rollout stays with one replica, whose prefix cache then holds its conversation: the replicas are ordered by a hash of
rollout and replica (rendezvous hashing), so nothing has to be remembered or cleaned up, and when one is left out only
its own rollouts move. A replica that fails, or that serves other weights than it should, is left out until a real
completion shows that it is well; the call is sent again to another one, which cannot give two recorded turns, because
nothing is recorded or shown to the harness before an answer is whole. A refusal of the engine is final (case O63).
"""

import asyncio
import hashlib
import sys
from collections.abc import Sequence

from proxy_addons.capability import Capability
from proxy_addons.capability import measure
from proxy_addons.conversation import Problem
from proxy_addons.engine import Completion
from proxy_addons.engine import EngineAway
from proxy_addons.engine import EngineClient
from proxy_addons.engine import Pictures
from proxy_addons.engine import Sampling
from proxy_addons.engine import TokenIds
from proxy_addons.errors import InfrastructureError

TRIES = 3
"""Replicas asked for one call."""

CALL_S = 1800.0
"""How long a call may take, all tries together."""

PROBE_S = 60.0
"""How long a replica may take over one token before it counts as not well."""

FIRST_PROBE_S, LAST_PROBE_S = 1.0, 30.0
"""Time until a replica that was left out is tried again; it doubles from the first to the last."""


class Replicas:
    """The engines of one proxy. `version` is the version of the weights that all must serve; None: not checked."""

    def __init__(self, clients: Sequence[EngineClient], probe: list[int], first_probe_s: float = FIRST_PROBE_S) -> None:
        """`probe` is a prompt of a few ids, sampled from to see whether a replica is well."""
        self.version: int | None = None
        self._clients = clients
        self._probe = probe
        self._first_probe_s = first_probe_s
        self._out: dict[EngineClient, asyncio.Task[None]] = {}

    async def generate(
        self, rollout: str, prompt_ids: TokenIds, sampling: Sampling, pictures: Pictures | None = None
    ) -> Completion:
        """Sample once, on the rollout's replica or the next one that is well. Raises InfrastructureError if none
        answers, or if the first to answer refuses; Problem `context_length` if it says the prompt is too long."""
        failures = []
        try:
            async with asyncio.timeout(CALL_S):
                for client in self._order(rollout)[:TRIES]:
                    try:
                        return await self._ask(client, prompt_ids, sampling, pictures)
                    except EngineAway as error:
                        failures.append(str(error))
                        self._leave_out(client)
        except TimeoutError:
            failures.append(f"no policy server answered within {CALL_S:.0f} s")
        raise InfrastructureError("; ".join(failures))

    async def capability(self, max_model_len: int) -> list[Capability]:
        """Measure every replica, and from then on hold all to the version of the weights that they say they serve.

        Raises InfrastructureError if one does not answer."""
        found = await asyncio.gather(*(measure(client, self._probe, max_model_len) for client in self._clients))
        versions = {each.weight_version for each in found}
        if len(versions) > 1:
            told = ", ".join(sorted(map(str, versions)))
            raise InfrastructureError(f"the policy servers serve different weights: versions {told}")
        self.version = versions.pop()
        return list(found)

    async def expect(self, version: int) -> dict[str, str]:
        """From now on all must serve `version`: asks each by a real completion and leaves out those that do not.

        Returns the reasons by URL of those left out. Raises InfrastructureError if none serves it."""
        self.version = version
        await self.close()
        asked = await asyncio.gather(*map(self._probed, self._clients))
        refused = {client.url: why for client, why in zip(self._clients, asked, strict=True) if why}
        if len(refused) == len(self._clients):
            raise InfrastructureError("; ".join(refused.values()))
        for client in self._clients:
            if client.url in refused:
                self._leave_out(client)
        return refused

    async def close(self) -> None:
        """Stop looking after the replicas that are left out; all count as well again."""
        tasks = list(self._out.values())
        self._out.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _order(self, rollout: str) -> list[EngineClient]:
        """The replicas that are well, the rollout's own first; all of them if none is well."""
        ranked = sorted(self._clients, key=lambda client: hashlib.sha256(f"{rollout} {client.url}".encode()).digest())
        return [client for client in ranked if client not in self._out] or ranked

    async def _ask(
        self, client: EngineClient, prompt_ids: TokenIds, sampling: Sampling, pictures: Pictures | None = None
    ) -> Completion:
        completion = await client.generate(prompt_ids, sampling, pictures)
        served = completion.weight_version_last
        if self.version is not None and served != self.version:
            raise EngineAway(f"policy server at {client.url} serves weights {served}, not {self.version}")
        return completion

    def _leave_out(self, client: EngineClient) -> None:
        if len(self._clients) > 1 and client not in self._out:
            print(f"proxy: leaving out {client.url} until it is well", file=sys.stderr, flush=True)
            self._out[client] = asyncio.create_task(self._bring_back(client))

    async def _bring_back(self, client: EngineClient) -> None:
        wait = self._first_probe_s
        while True:
            await asyncio.sleep(wait)
            if await self._probed(client) is None:
                print(f"proxy: {client.url} is well again", file=sys.stderr, flush=True)
                self._out.pop(client, None)
                return
            wait = min(2 * wait, LAST_PROBE_S)

    async def _probed(self, client: EngineClient) -> str | None:
        """Why the replica is not well; None if it is."""
        try:
            async with asyncio.timeout(PROBE_S):
                await self._ask(client, self._probe, Sampling(max_tokens=1))
        except TimeoutError:
            return f"policy server at {client.url} did not sample one token within {PROBE_S:g} s"
        except (InfrastructureError, Problem) as error:
            return str(error)
        return None
