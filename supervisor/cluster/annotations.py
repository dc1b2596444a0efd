"""Names the annotations of jobs and pods through which users, controllers and the supervisor communicate."""

from collections.abc import Mapping

PREFIX = "job-supervisor.kube-ai.io/"
"""Annotations that begin with it are kept; of others only those of `_QUEUES`, as they may be long."""

MANAGED = f"{PREFIX}managed-by-job-supervisor"
SPOT = f"{PREFIX}spot-instance"
MIN_WORKERS = f"{PREFIX}min-workers"
MAX_WORKERS = f"{PREFIX}max-workers"
"""The bounds of a job whose kind has no fields for them."""

MAX_WAIT = f"{PREFIX}max-wait-time"
"""Seconds that a job may wait for capacity; 0 is for ever."""

ON_TIMEOUT = f"{PREFIX}on-timeout"
"""`end` or `move`: whether a job that has waited for that time times out, or its hub moves it to another cluster."""

ON_LOSS = f"{PREFIX}on-loss"
"""What a job wants when it loses workers: `shrink` or `hold`."""
WORKER_MULTIPLE = f"{PREFIX}worker-multiple"
"""Every size of a job's runs is a multiple of it."""

SUSPENDED_BY = f"{PREFIX}suspended-by"
OURS = "elastic-job-supervisor"
"""The value of `SUSPENDED_BY` where it was not a person who suspended the job."""
PRIORITY_BOOST = f"{PREFIX}priority-boost"
"""On a Workload of Kueue: the boost that the supervisor has written. Another value beside it is somebody else's."""
STATUS = f"{PREFIX}job-status"
TIMEOUT = "timeout"
"""The value of `STATUS` of a job that waited longer than it may."""
STOPPED_BY_REQUEST = "stopped"
"""The value of `STATUS` of a job that a person has stopped for good."""

SUSPEND = f"{PREFIX}suspend"
"""On a job: a person asks to save it and to keep it suspended. The value is `WHO: REASON`."""
STOP = f"{PREFIX}stop"
"""On a job: a person asks to save it and to end it for good. The value is as that of `SUSPEND`."""

REQUESTED = f"{PREFIX}requested-workers"
"""How many workers a job asked for that was resumed with fewer."""

NO_CAPACITY = f"{PREFIX}no-capacity"
"""`true` on a job of a hub: this cluster has given it up, so the hub is to place it in another one."""
LAST_CHECKPOINT = f"{PREFIX}last-checkpoint"
"""The step of a job's last checkpoint. A hub writes a label of this name on the object that it creates elsewhere."""

DRAIN = f"{PREFIX}drain"
"""On a node: a person drains it, as long as it is there. The value is as that of `SUSPEND`."""
DRAIN_AT = f"{PREFIX}drain-at"
"""On such a node: when it has to be empty (RFC 3339); without it after the default lead."""
DRAIN_CORDONED = f"{PREFIX}drain-cordoned"
"""On such a node: the drain has cordoned it, and its end takes that back."""

EXCLUDED = f"{PREFIX}excluded-hosts"
"""On a launcher's pod: the hosts that it leaves out, one a line."""
DIRECTIVE = f"{PREFIX}directive"
"""On a worker's pod: what its processes are to do, for those without a stream."""

ADDRESS = f"{PREFIX}address"
CA = f"{PREFIX}ca"
DISCOVERY_SCRIPT = f"{PREFIX}discovery-script"
INJECTED = frozenset({ADDRESS, CA, DISCOVERY_SCRIPT})
"""Annotations that a pod gets for its own files. The supervisor does not read them, so they are not cached."""


QUEUE_SUSPEND = "scheduling.x-k8s.io/suspend"
"""On a job: `true` while KubeQueue or koord-queue holds it back."""
QUEUE_ENQUEUED = "koord-queue/job-has-enqueued"
"""On a Job of Kubernetes: koord-queue has taken it into a queue."""
QUEUE_DEQUEUED = "koord-queue/job-dequeue-timestamp"
"""On such a Job: when koord-queue admitted it; empty while it holds the Job back."""
_QUEUES = frozenset({QUEUE_SUSPEND, QUEUE_ENQUEUED, QUEUE_DEQUEUED})

KNOWN = (
    _QUEUES
    | INJECTED
    | frozenset(
        {
            MANAGED,
            SPOT,
            MIN_WORKERS,
            MAX_WORKERS,
            MAX_WAIT,
            ON_TIMEOUT,
            ON_LOSS,
            WORKER_MULTIPLE,
            SUSPENDED_BY,
            PRIORITY_BOOST,
            STATUS,
            SUSPEND,
            STOP,
            REQUESTED,
            NO_CAPACITY,
            LAST_CHECKPOINT,
            EXCLUDED,
            DIRECTIVE,
        }
    )
)
"""The annotations that a job of any kind, or its pods, may have."""


def opts_in(annotations: Mapping[str, str]) -> bool:
    """Returns whether these annotations of an object opt in to supervision."""
    return any(annotations.get(name) == "true" for name in (MANAGED, SPOT))


def opts_out(annotations: Mapping[str, str]) -> bool:
    """Returns whether these annotations of a job opt out of supervision, even if its templates opt in."""
    return annotations.get(MANAGED, annotations.get(SPOT)) == "false"


def ours(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the annotations that begin with our prefix, or that a queue has written."""
    kept = (annotations or {}).items()
    return {name: value for name, value in kept if name.startswith(PREFIX) or name in _QUEUES}
