"""The resources that the test API server knows, and the errors it answers with."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Resource:
    group: str
    """API group, "" for the core."""
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    writable: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified(self) -> str:
        """The name that error messages and quotas use: `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RESOURCES = {
    resource.plural: resource
    for resource in (
        Resource("", "pods", "Pod", short=("po",)),
        Resource("", "secrets", "Secret"),
        Resource("", "configmaps", "ConfigMap", short=("cm",)),
        Resource("", "events", "Event", short=("ev",)),
        Resource("", "resourcequotas", "ResourceQuota", short=("quota",)),
        Resource("", "nodes", "Node", namespaced=False, short=("no",), writable=False),
        Resource("", "namespaces", "Namespace", namespaced=False, short=("ns",), writable=False),
        Resource("batch", "jobs", "Job"),
    )
}


class ApiError(Exception):
    """An answer of the API server that is not a success: its HTTP status, its `reason`, its words."""

    def __init__(self, code: int, reason: str, message: str, retry_after: int | None = None, **details: Any) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.retry_after = code, reason, message, retry_after
        self.details = details | ({} if retry_after is None else {"retryAfterSeconds": retry_after})

    @property
    def body(self) -> dict[str, Any]:
        """The `Status` object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', name=name, kind=resource.plural)


def already_exists(resource: Resource, name: str) -> ApiError:
    text = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, name=name, kind=resource.plural)


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", text, name=name, kind=resource.plural)


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', name=name)


def invalid(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(422, "Invalid", f'{resource.kind} "{name}" is invalid: {why}', name=name, kind=resource.kind)


def expired(version: int, oldest: int) -> ApiError:
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")
