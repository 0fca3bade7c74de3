"""Which hosts a rollout may reach, as patterns: a name, an address, or `*.suffix` for every name below the suffix."""

import re
from collections.abc import Iterable

MODEL_HOSTS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")
"""The model APIs that the policy stands in for at the egress port."""

_PATTERN = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:]+")


def check_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """The patterns in lower case. Raises ValueError if one is not a host name, an address or `*.suffix`."""
    found = tuple(host.lower() for host in hosts)
    for host in found:
        if not _PATTERN.fullmatch(host):
            raise ValueError(f"host {host!r}: use a name or an address without a port, or *.suffix for all names below")
    return found


def host_matches(host: str, patterns: Iterable[str]) -> bool:
    """Whether `host` is one of `patterns`, or, for `*.suffix`, a name below it."""
    return any(host.endswith(p[1:]) if p.startswith("*.") else host == p for p in patterns)
