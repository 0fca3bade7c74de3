"""What goes wrong on purpose: planned answers to the next requests, and planned ends of the next watches."""

import random
import re
from dataclasses import dataclass
from typing import Literal

from tests.kube.resources import ApiError

REASONS = {
    403: ("Forbidden", "exceeded quota: test, requested: pods=1, used: pods=1, limited: pods=1"),
    409: ("Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "request did not complete within the allotted timeout"),
}


@dataclass
class Fault:
    """What the next `times` requests get whose method and path (a regular expression, found anywhere in path and query)
    fit, each with `probability`."""

    method: str
    path: str
    times: float
    status: int | None
    """None: the connection is cut without an answer."""
    retry_after: int | None = None
    message: str | None = None
    does_the_work: bool = False
    """Without a status: the work is done, and the answer lost."""
    hold_s: float = 0
    """How long the caller waits before the connection is cut."""
    probability: float = 1

    def error(self) -> ApiError:
        assert self.status is not None
        reason, message = REASONS[self.status]
        return ApiError(self.status, reason, self.message or message, self.retry_after)


@dataclass(frozen=True)
class WatchEnd:
    """The next watch whose path fits ends like this when `after` events have been sent."""

    after: int
    how: Literal["silent", "cut", "closed", "expired"]
    path: str = ""


class Faults:
    def __init__(self, seed: int = 0) -> None:
        self.watches: list[WatchEnd] = []
        """Taken in order, one a watch."""
        self._planned: list[Fault] = []
        self._random = random.Random(seed)

    def answer(
        self,
        method: str,
        path: str,
        status: int,
        *,
        times: float = 1,
        retry_after: int | None = None,
        message: str | None = None,
        probability: float = 1,
    ) -> Fault:
        """The next requests are answered with an error and not done; `times` may be `math.inf`."""
        fault = Fault(method, path, times, status, retry_after, message, probability=probability)
        self._planned.append(fault)
        return fault

    def cut(self, method: str, path: str, *, times: float = 1, probability: float = 1) -> Fault:
        """The connection is cut before anything is done."""
        return self._plan(Fault(method, path, times, None, probability=probability))

    def lose_answer(
        self, method: str, path: str, *, times: float = 1, hold_s: float = 0, probability: float = 1
    ) -> Fault:
        """The request is done; its caller waits `hold_s` seconds and is then cut off."""
        return self._plan(Fault(method, path, times, None, None, None, True, hold_s, probability))

    def _plan(self, fault: Fault) -> Fault:
        self._planned.append(fault)
        return fault

    def clear(self) -> None:
        self._planned.clear()
        self.watches.clear()

    def take(self, method: str, path: str) -> Fault | None:
        for fault in self._planned:
            if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                if self._random.random() >= fault.probability:
                    continue
                fault.times -= 1
                return fault
        return None

    def take_watch(self, path: str) -> WatchEnd | None:
        for plan in self.watches:
            if re.search(plan.path, path):
                self.watches.remove(plan)
                return plan
        return None
