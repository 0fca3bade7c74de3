"""mitmproxy's addon manager, which here knows who listens to an event.

A request is eight events: four hooks, each followed by an `update`. The stock manager looks into every addon for a
method of that name at each of them, under a guard of its own.
"""

import inspect
from collections.abc import Callable
from typing import Any

from mitmproxy.addonmanager import AddonManager
from mitmproxy.addonmanager import safecall
from mitmproxy.exceptions import AddonHalt
from mitmproxy.hooks import Hook


class Addons(AddonManager):
    """As the stock manager, for addons whose hooks are there when they are added."""

    def __init__(self, master: Any) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = {}
        super().__init__(master)

    def register(self, addon: Any) -> Any:
        """As the stock manager's."""
        self._listeners.clear()
        return super().register(addon)

    def remove(self, addon: Any) -> None:
        """As the stock manager's."""
        self._listeners.clear()
        super().remove(addon)

    async def trigger_event(self, event: Hook) -> None:
        """Tell those who listen, one after the other."""
        listeners = self._listeners.get(event.name)
        if listeners is None:
            found = [hook for addon in self.chain for _, hook in self._iter_hooks(addon, event)]
            listeners = self._listeners[event.name] = found
        for hook in listeners:
            try:
                with safecall():
                    result = hook(*event.args())
                    if result is not None and inspect.isawaitable(result):
                        await result
            except AddonHalt:
                return
