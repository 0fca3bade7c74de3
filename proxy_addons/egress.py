"""Egress: the port for harnesses that ignore base URLs, an HTTP proxy (CONNECT) in front of everything they ask for.

    HTTPS_PROXY=http://ROLLOUT:KEY@HOST:PORT   and our CA's certificate as a trusted one

Who may ask is a live rollout with its key. What it gets depends on the host:

* a model API's host: the gateway answers, as a model call of that rollout; nothing goes to the real host;
* a host that the rollout may reach: bytes pass untouched, end to end encrypted, and one finding says that they did;
* any other: 403 and a finding on the rollout. Its name is not looked up and no connection is opened.

A request that names the rollout in its path (/r/ROLLOUT/...) is served here too, so that a sandbox needs one way out.
"""

import re
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary
from weakref import WeakSet

import certifi
from mitmproxy import connection
from mitmproxy import http
from mitmproxy.addons.proxyauth import parse_http_basic_auth
from mitmproxy.proxy import layer
from mitmproxy.proxy import layers
from mitmproxy.proxy.mode_specs import RegularMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from proxy_addons.capture import take_key
from proxy_addons.errors import ConfigError
from proxy_addons.hosts import host_matches
from proxy_addons.live import Live
from proxy_addons.live import LiveRollout
from proxy_addons.live import key_matches
from proxy_addons.records import to_json

MAX_FINDINGS = 32
"""Hosts named per rollout; the rest are one finding more."""

_SEEN = "egress"
"""Set in the metadata of a flow that was decided here, so that nobody decides it again."""


def trusted_certificates(confdir: Path, more: Path | None) -> Path:
    """Write `confdir`/trusted.pem and return its path: our CA, the public ones, and those in `more`.

    Our CA alone would not do: SSL_CERT_FILE replaces what a program trusts, and the hosts that pass show their own
    certificates. Raises ConfigError if `more` cannot be read.
    """
    parts = [confdir / "mitmproxy-ca-cert.pem", Path(certifi.where()), *([more] if more else [])]
    try:
        text = "\n".join(part.read_text() for part in parts)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trusted certificates: cannot read a PEM file: {error}") from error
    bundle = confdir / "trusted.pem"
    bundle.write_text(text)
    return bundle


class Egress:
    """The addon. `admit` has a request for a path answered as a rollout's own; `streams` is where waiting ones go."""

    def __init__(self, live: Live, streams: tuple[str, int], admit: Callable[[http.HTTPFlow, str, str], None]) -> None:
        self._live = live
        self._streams = streams
        self._admit = admit
        # What a client's connection may be connected to, and, once it is a tunnel, whose it is.
        self._reachable: WeakKeyDictionary[connection.Client, set[connection.Address]] = WeakKeyDictionary()
        self._tunnels: WeakKeyDictionary[connection.Client, LiveRollout] = WeakKeyDictionary()
        self._untouched: WeakSet[connection.Client] = WeakSet()

    def http_connect(self, flow: http.HTTPFlow) -> None:
        """Open a tunnel, or say why not."""
        rollout = self._authenticate(flow)
        if rollout is None:
            return
        host = _host(flow)
        if host_matches(host, rollout.model_hosts):
            self._tunnels[flow.client_conn] = rollout
        elif host_matches(host, rollout.allow_hosts):
            self._pass(flow, rollout, host)
            self._untouched.add(flow.client_conn)
        else:
            _refuse_host(flow, rollout, host)

    def next_layer(self, data: layer.NextLayer) -> None:
        """The bytes in a tunnel to a host that may be reached are not looked at."""
        if data.context.client in self._untouched:
            data.layer = layers.TCPLayer(data.context, ignore=True)

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        """A request in a tunnel to a model's host, or one for a proxy without a tunnel (plain HTTP)."""
        if not isinstance(flow.client_conn.proxy_mode, RegularMode):
            return
        owner, headers = self._tunnels.get(flow.client_conn), flow.request.headers
        if owner is None and flow.request.path.startswith("/r/") and "proxy-authorization" not in headers:
            return  # as on the other port
        flow.metadata[_SEEN] = True
        if owner is None:
            self._without_tunnel(flow)
        elif self._live.get(owner.identity.id) is not owner:
            _answer(flow, 401, f"rollout {owner.identity.id} has ended, and its key with it")
        else:
            self._to_the_policy(flow, owner)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        """Stream what passes."""
        if flow.response is not None and flow.metadata.get(_SEEN):
            flow.response.stream = True

    def server_connect(self, data: ServerConnectionHookData) -> None:
        """The last door: whatever came before, a connection is opened only to where the policy let it."""
        if isinstance(data.client.proxy_mode, RegularMode):
            address = data.server.address
            if address != self._streams and address not in self._reachable.get(data.client, ()):
                data.server.error = "not allowed by the egress policy"

    def _without_tunnel(self, flow: http.HTTPFlow) -> None:
        rollout = self._authenticate(flow)
        if rollout is None:
            return
        host = _host(flow)
        if host_matches(host, rollout.model_hosts):
            self._to_the_policy(flow, rollout)
        elif host_matches(host, rollout.allow_hosts):
            self._pass(flow, rollout, host)
            flow.request.stream = True
        else:
            _refuse_host(flow, rollout, host)

    def _to_the_policy(self, flow: http.HTTPFlow, rollout: LiveRollout) -> None:
        take_key(flow.request)  # whatever the harness has for the real API: the proxy's password was the key
        self._admit(flow, rollout.identity.id, flow.request.path.split("?")[0].replace(rollout.key, "rollout-key"))

    def _authenticate(self, flow: http.HTTPFlow) -> LiveRollout | None:
        """The rollout whose id and key the request shows; None, and 407 as the answer, if there is none."""
        try:
            _, name, key = parse_http_basic_auth(flow.request.headers.pop("proxy-authorization", ""))
        except ValueError:
            name = key = ""
        rollout = self._live.get(name)
        if rollout is None or not key_matches(rollout, key):
            _answer(flow, 407, "no live rollout and its key: set HTTPS_PROXY=http://ROLLOUT:KEY@HOST:PORT")
            return None
        return rollout

    def _pass(self, flow: http.HTTPFlow, rollout: LiveRollout, host: str) -> None:
        _note(rollout, "egress_passed", host)
        self._reachable.setdefault(flow.client_conn, set()).add((flow.request.host, flow.request.port))


def _host(flow: http.HTTPFlow) -> str:
    return flow.request.host.lower().rstrip(".")


def _refuse_host(flow: http.HTTPFlow, rollout: LiveRollout, host: str) -> None:
    _note(rollout, "egress_refused", host)
    _answer(flow, 403, f"this rollout may not reach {host[:100]}; its task's allow_hosts name what it may")


def _note(rollout: LiveRollout, code: str, host: str) -> None:
    """One finding a host, without the key, which a host's name can be made to carry out."""
    name = re.sub(re.escape(rollout.key), "[rollout key]", host, flags=re.IGNORECASE)[:100]
    known = sum(finding.startswith(f"{code}:") for finding in rollout.findings)
    rollout.findings.add(f"{code}:{name}" if known < MAX_FINDINGS else f"{code}:(more hosts)")


def _answer(flow: http.HTTPFlow, status: int, message: str) -> None:
    headers = {"content-type": "application/json"}
    if status == 407:
        headers["proxy-authenticate"] = 'Basic realm="openforge"'
    flow.response = http.Response.make(status, to_json({"error": {"message": f"egress: {message}"}}), headers)
