"""A pod as the agent keeps it: what tells a reclaim from every other end, and nothing else.

A node has up to 250 pods, whose manifests are some megabytes; those that are not opted in are kept as names.
"""

import enum
from dataclasses import dataclass
from datetime import datetime

import msgspec

from servicekit.kubernetes.collection import Kind
from servicekit.kubernetes.objects import Metadata

PODS = Kind(group="", version="v1", kind="Pod", plural="pods", namespaced=True)

# What the wire carries for people, in characters.
_MOST_TEXT = 512
_DISRUPTION = "DisruptionTarget"
_OPTED_IN = "true"
# What the API server fills in where a pod does not say.
_USUAL_GRACE = 30.0


class Phase(enum.Enum):
    """Where a pod stands, as far as that matters."""

    PRESENT = enum.auto()
    SUCCEEDED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class Disruption:
    """The condition DisruptionTarget: somebody other than the pod's owner wants it gone, or (`holds` False) wanted to.

    Attributes:
        holds: Whether that is so.
        reason: One word, by whom.
        message: For people.
        since: When that became so or ceased to be.
    """

    holds: bool
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of this node; of one that is not opted in, the first two fields only.

    Attributes:
        opted_in: Whether an annotation gives the pod into our care.
        grace: Seconds that it has from the request for its end: as it was asked to end, else as its spec says.
        deleted_at: When its grace ends or ended; None while nobody asked for its deletion.
        ended_at: When its last container ended; None while one may be running.
        reason: Why it failed, in one word.
        message: The same for people.
    """

    metadata: Metadata
    opted_in: bool
    phase: Phase = Phase.PRESENT
    grace: float = _USUAL_GRACE
    deleted_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    message: str = ""
    disruption: Disruption | None = None


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """Part of a pod, as Kubernetes names its fields."""


class _Annotations(_Part, frozen=True):
    managed: str = msgspec.field(default="", name="job-supervisor.kube-ai.io/managed-by-job-supervisor")
    spot: str = msgspec.field(default="", name="job-supervisor.kube-ai.io/spot-instance")


class _Metadata(Metadata, frozen=True, rename="camel"):
    annotations: _Annotations | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: float | None = None


class _Spec(_Part, frozen=True):
    termination_grace_period_seconds: float | None = None


class _Condition(_Part, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _Terminated(_Part, frozen=True):
    finished_at: datetime | None = None


class _State(_Part, frozen=True):
    terminated: _Terminated | None = None


class _Container(_Part, frozen=True):
    state: _State = _State()


class _Status(_Part, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[_Condition, ...] | None = ()
    container_statuses: tuple[_Container, ...] | None = ()


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_DECODER = msgspec.json.Decoder(_Pod)
_PHASES = {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}


def read_pod(data: bytes | msgspec.Raw) -> Pod:
    """One pod out of its manifest.

    Raises:
        msgspec.MsgspecError: It does not decode.
    """
    read = _DECODER.decode(data)
    metadata, status = _bare(read.metadata), read.status
    if not _opted_in(read.metadata):
        return Pod(metadata=metadata, opted_in=False)
    return Pod(
        metadata=metadata,
        opted_in=True,
        phase=_PHASES.get(status.phase, Phase.PRESENT),
        grace=_grace(read),
        deleted_at=read.metadata.deletion_timestamp,
        ended_at=_ended_at(status.container_statuses or ()),
        reason=status.reason,
        message=status.message[:_MOST_TEXT],
        disruption=next((_disruption(each) for each in status.conditions or () if _is_disruption(each)), None),
    )


def _bare(read: _Metadata) -> Metadata:
    return Metadata(name=read.name, uid=read.uid, resource_version=read.resource_version, namespace=read.namespace)


def _opted_in(metadata: _Metadata) -> bool:
    annotations = metadata.annotations or _Annotations()
    return _OPTED_IN in (annotations.managed, annotations.spot)


def _grace(read: _Pod) -> float:
    for grace in (read.metadata.deletion_grace_period_seconds, read.spec.termination_grace_period_seconds):
        if grace is not None:
            return grace
    return _USUAL_GRACE


def _ended_at(containers: tuple[_Container, ...]) -> datetime | None:
    ends = [each.state.terminated.finished_at if each.state.terminated else None for each in containers]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _is_disruption(read: _Condition) -> bool:
    # One that is neither true nor false says nothing.
    return read.type == _DISRUPTION and read.status in ("True", "False")


def _disruption(read: _Condition) -> Disruption:
    return Disruption(read.status == "True", read.reason, read.message[:_MOST_TEXT], read.last_transition_time)
