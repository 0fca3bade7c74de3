"""What the rollouts of one run need to know of their cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field


@dataclass(frozen=True)
class Bounds:
    """How long a pod may stand still before its try is given up, in seconds. The clock starts at its last progress.

    `schedule_s` waits for room in the quota and for a node (an autoscaler may have to bring one), `create_s` for
    images, volumes and containers, `config_s` for a Secret or ConfigMap that is not there, `record_s` for the result of
    a pod that has ended, `delete_s` for a pod that somebody else is deleting, `api_s` for an API server that does not
    answer.
    """

    schedule_s: float = 900.0
    create_s: float = 900.0
    config_s: float = 60.0
    record_s: float = 60.0
    delete_s: float = 120.0
    api_s: float = 300.0


@dataclass(frozen=True)
class Settings:
    """`image` is the task image where a task names none; `payloads` maps a harness to the image that holds it.

    `collector_url` is where pods reach `collector_listen`, this process's own host and port.
    `retry_priority_class` is the priority of a try that follows a lost one, None: as any other.
    `sidecar_script` is the path of `sidecar.py` in `sidecar_image`. `max_pods` bounds the pods at a time,
    `creates_per_s` the Jobs created per second.
    """

    run: str
    namespace: str
    image: str
    sidecar_image: str
    payloads: Mapping[str, str]
    collector_url: str
    collector_listen: tuple[str, int] = ("0.0.0.0", 9200)
    sidecar_script: str = "/openforge/sidecar.py"
    service_account: str | None = None
    runtime_class: str | None = None
    priority_class: str | None = None
    retry_priority_class: str | None = None
    ttl_s: int = 600
    max_pods: int = 256
    creates_per_s: float = 20.0
    bounds: Bounds = field(default_factory=Bounds)
