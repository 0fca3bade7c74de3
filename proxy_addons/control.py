"""How the orchestrator speaks to the proxy: register and end rollouts, pause for a weight update.

Its own port on loopback, its own bearer token; no sandbox can reach it.
"""

import asyncio
import hmac
from collections import Counter
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.typedefs import Middleware
from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import ValidationError

from proxy_addons import records
from proxy_addons.chain import Trajectory
from proxy_addons.errors import ConfigError
from proxy_addons.errors import InfrastructureError
from proxy_addons.gateway import Gateway
from proxy_addons.hosts import MODEL_HOSTS
from proxy_addons.hosts import check_hosts
from proxy_addons.identity import Rollout
from proxy_addons.ledger import Ledger
from proxy_addons.ledger import carry_on
from proxy_addons.ledger import compile_calls
from proxy_addons.live import Limits
from proxy_addons.live import Live
from proxy_addons.live import LiveRollout
from proxy_addons.rendering import Rendering
from proxy_addons.replicas import Replicas
from proxy_addons.review import review


class Registration(BaseModel):
    """Body of `POST /rollouts`. `calls_path` is where the rollout's Parquet file goes; the ledger lies beside it.

    `allow_hosts` is what the rollout may reach through the egress port, `model_hosts` what is answered there by the
    policy besides the hosts of the known model APIs: names, addresses, or `*.suffix`. `continues` is the id of a try
    that was ended to be gone on with: its calls become the first ones of this rollout, and count in its limits.
    """

    model_config = ConfigDict(extra="forbid")

    run: str
    epoch: int
    task: str
    sample: int
    try_: int
    harness: str
    key: str
    calls_path: str
    limits: Limits = Limits()
    allow_hosts: list[str] = []
    model_hosts: list[str] = []
    continues: str | None = None


class Control:
    """The control application."""

    def __init__(
        self,
        live: Live,
        ledger: Ledger,
        gateway: Gateway,
        rendering: Rendering,
        template: dict[str, Any],
        replicas: Replicas,
        token: str,
        trusted: Path,
    ) -> None:
        """`template` is what `stability.describe` told of the rendering, `trusted` what sandboxes must trust (PEM)."""
        self.listening = False  # set once the harnesses' ports are open
        self._live = live
        self._kept: dict[str, LiveRollout] = {}
        self._ledger = ledger
        self._gateway = gateway
        self._rendering = rendering
        self._replicas = replicas
        self._template = template
        self._token = token
        self._trusted = trusted

    def app(self) -> web.Application:
        """Routes: see the handlers' docstrings."""
        app = web.Application(middlewares=[self._middleware()])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/capability", self._capability),
                web.get("/rendering", self._told),
                web.get("/trusted.pem", self._trusted_certificates),
                web.post("/rollouts", self._register),
                web.get("/rollouts/{id}/failure", self._failure),
                web.delete("/rollouts/{id}", self._end),
                web.delete("/runs/{run}", self._abandon),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
            ]
        )
        return app

    def _middleware(self) -> Middleware:
        @web.middleware
        async def authenticate(http: web.Request, handler: Handler) -> web.StreamResponse:
            shown = http.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(shown.encode(), self._token.encode()):
                return web.json_response({"error": "wrong control token"}, status=401)
            return await handler(http)

        return cast(Middleware, authenticate)

    async def _health(self, _: web.Request) -> web.Response:
        if not self.listening:  # or never: another program may have a port
            return web.json_response({"error": "the proxy is starting"}, status=503)
        return web.json_response({"rollouts": len(self._live)})

    async def _capability(self, http: web.Request) -> web.Response:
        """What each engine can do, measured now for a run that needs `max_model_len` (in the query) tokens."""
        try:
            found = await self._replicas.capability(int(http.query["max_model_len"]))
        except (KeyError, ValueError) as error:
            return web.json_response({"error": f"max_model_len: {error}"}, status=400)
        except InfrastructureError as error:
            return web.json_response({"error": str(error)}, status=502)
        return web.json_response({"engines": [asdict(each) for each in found]})

    async def _told(self, _: web.Request) -> web.Response:
        """How the policy's template treats a conversation that grows (see `stability`)."""
        return web.json_response(self._template)

    async def _trusted_certificates(self, _: web.Request) -> web.FileResponse:
        """What a program in a sandbox must trust to go through the egress port."""
        return web.FileResponse(self._trusted)

    async def _register(self, http: web.Request) -> web.Response:
        """Make a rollout's key and prefix valid."""
        try:
            asked = Registration.model_validate_json(await http.read())
            identity = Rollout(asked.run, asked.epoch, asked.task, asked.sample, asked.try_)
            calls = Path(asked.calls_path)
            ledger = calls.with_name(f".{calls.stem}.ledger")
            await asyncio.to_thread(ledger.unlink, True)  # a dead process's half: this try is being run again
            trajectory = Trajectory(self._rendering)
            rollout = LiveRollout(identity, asked.harness, asked.key, asked.limits, ledger, trajectory)
            rollout.allow_hosts = check_hosts(asked.allow_hosts)
            rollout.model_hosts = check_hosts([*MODEL_HOSTS, *asked.model_hosts])
            await self._take_over(rollout, asked.continues)
            self._live.add(rollout)
        except (ValidationError, ConfigError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({"rollout": identity.id}, status=201)

    async def _take_over(self, rollout: LiveRollout, earlier_id: str | None) -> None:
        """Go on with what an earlier try at this slot left, if it is asked to; else that goes. Raises ValueError."""
        earlier = self._kept.pop(rollout.identity.slot, None)
        if earlier_id is None:
            if earlier is not None:
                await asyncio.to_thread(earlier.ledger.unlink, True)
            return
        if earlier is None or earlier.identity.id != earlier_id:
            raise ValueError(f"rollout {earlier_id} cannot be gone on with: it was not kept here")
        await asyncio.to_thread(carry_on, earlier.ledger, rollout.ledger)
        rollout.trajectory, rollout.findings = earlier.trajectory, earlier.findings
        rollout.calls, rollout.used = earlier.calls, earlier.used
        rollout.sampled_tokens = earlier.sampled_tokens

    async def _failure(self, http: web.Request) -> web.Response:
        """Answers when our side breaks under the rollout, or the rollout ends (`reason` null)."""
        rollout = self._live.get(http.match_info["id"])
        if rollout is None:
            return web.json_response({"error": "unknown rollout"}, status=404)
        return web.json_response({"reason": await asyncio.shield(rollout.failure) or None})

    async def _end(self, http: web.Request) -> web.Response:
        """Kill the key, stop what is still running, write the Parquet file, say what was recorded.

        With `keep` in the query, any call answered and no budget used up, the next try at its slot may go on with it
        (`kept`)."""
        rollout = self._live.remove(http.match_info["id"])
        if rollout is None:
            return web.json_response({"error": "unknown rollout"}, status=404)
        await _stop(rollout)
        await self._ledger.append(rollout.ledger, {"kind": "end", "calls": rollout.calls})
        path = str(rollout.ledger.with_name(f"{rollout.ledger.name[1:].removesuffix('.ledger')}.parquet"))
        summary = await asyncio.to_thread(_write_calls, rollout, self._rendering, path)
        kept = "keep" in http.query and summary["answered"] > 0 and not rollout.out_of_budget
        if kept:
            self._kept[rollout.identity.slot] = rollout
        else:
            await asyncio.to_thread(rollout.ledger.unlink, True)
        return web.json_response(summary | {"kept": kept})

    async def _abandon(self, http: web.Request) -> web.Response:
        """Kill the keys of a run whose controller died. No file is written: those rollouts are owed again."""
        names = self._live.of_run(http.match_info["run"])
        self._kept = {slot: each for slot, each in self._kept.items() if each.identity.run != http.match_info["run"]}
        await asyncio.gather(*(_stop(rollout) for name in names if (rollout := self._live.remove(name))))
        return web.json_response({"abandoned": names})

    async def _pause(self, _: web.Request) -> web.Response:
        """Hold new calls; answers when none is inside the engine."""
        await self._gateway.gate.close()
        return web.json_response({"paused": True})

    async def _resume(self, http: web.Request) -> web.Response:
        """Let held calls go on. With `weight_version` in the query only engines that show that they serve it are asked
        from now on, and if none does, the calls stay held."""
        left_out: dict[str, str] = {}
        try:
            if "weight_version" in http.query:
                left_out = await self._replicas.expect(int(http.query["weight_version"]))
        except ValueError as error:
            return web.json_response({"error": f"weight_version: {error}"}, status=400)
        except InfrastructureError as error:
            return web.json_response({"error": str(error)}, status=502)
        self._gateway.gate.open()
        return web.json_response({"paused": False, "left_out": left_out})


async def _stop(rollout: LiveRollout) -> None:
    """End the calls of a rollout that is not live any more."""
    busy = set(rollout.busy)
    for task in busy:
        task.cancel()
    if busy:
        await asyncio.wait(busy)
    rollout.fail("")


def _write_calls(rollout: LiveRollout, rendering: Rendering, path: str) -> dict[str, Any]:
    identity = {
        "run": rollout.identity.run,
        "epoch": rollout.identity.epoch,
        "task": rollout.identity.task,
        "sample": rollout.identity.sample,
        "try": rollout.identity.try_,
        "rollout": rollout.identity.id,
        "harness": rollout.harness,
    }
    rows, complete = compile_calls(rollout.ledger, identity)
    for row in rows:
        row["findings"] += review(row, rendering)
    findings = Counter(chain.from_iterable([*(row["findings"] for row in rows), rollout.findings]))
    records.write(path, records.table(rows, records.CALLS))
    failure = rollout.failure.result() if rollout.failure.done() else ""
    return {
        "calls_path": path,
        "complete": complete,
        "calls": len(rows),
        "answered": sum(row["status"] == "ok" for row in rows),
        "chains": len({row["chain"] for row in rows if row["status"] == "ok"}),
        "prompt_tokens": sum(row.get("usage_prompt") or 0 for row in rows),
        "sampled_tokens": sum(len(row.get("sampled_ids") or ()) for row in rows),
        "weight_version": min((v for row in rows if (v := row.get("weight_version")) is not None), default=None),
        "findings": sorted(findings),
        "finding_counts": dict(findings),
        "out_of_budget": rollout.out_of_budget,
        "engine_failure": failure or None,
    }
