"""A pod as the agent keeps it: only the fields by which a reclaim differs from every other end.

A node has up to 250 pods, whose manifests are some megabytes; of those that are not opted in only the name is kept.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from servicekit.disruption import DISRUPTED, EXPIRED, PodCondition, PodState, ended_at_of, grace_of
from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata

PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)

# Characters of a text for people that the wire carries.
_MAX_TEXT = 512
_OPTED_IN = "true"


_NOT_READ = PodState()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of this node.

    Attributes:
        opted_in: Whether an annotation asks for supervision.
        state: Decoded only for opted-in pods.
    """

    metadata: Metadata
    opted_in: bool
    state: PodState = _NOT_READ

    @property
    def ended(self) -> bool:
        """Whether all containers of an opted-in pod have ended."""
        return self.state.succeeded or self.state.failed


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the parts of a pod that are decoded."""


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


def read_pod(data: bytes | msgspec.Raw) -> Pod:
    """Decodes a pod.

    Raises:
        msgspec.MsgspecError: The JSON is not a pod.
    """
    read = _DECODER.decode(data)
    opted_in = _opted_in(read.metadata)
    return Pod(metadata=_bare(read.metadata), opted_in=opted_in, state=_state(read) if opted_in else _NOT_READ)


def _bare(read: _Metadata) -> Metadata:
    return Metadata(name=read.name, uid=read.uid, resource_version=read.resource_version, namespace=read.namespace)


def _opted_in(metadata: _Metadata) -> bool:
    annotations = metadata.annotations or _Annotations()
    return _OPTED_IN in (annotations.managed, annotations.spot)


def _state(read: _Pod) -> PodState:
    status = read.status
    ended = [each.state.terminated for each in status.container_statuses or ()]
    return PodState(
        succeeded=status.phase == "Succeeded",
        failed=status.phase == "Failed",
        reason=status.reason,
        message=status.message[:_MAX_TEXT],
        conditions=tuple(_condition(each) for each in status.conditions or () if each.type in (DISRUPTED, EXPIRED)),
        grace=grace_of(read.metadata.deletion_grace_period_seconds, read.spec.termination_grace_period_seconds),
        deleted_at=read.metadata.deletion_timestamp,
        ended_at=ended_at_of([None if each is None else each.finished_at for each in ended]),
    )


def _condition(read: _Condition) -> PodCondition:
    return PodCondition(read.type, read.status, read.reason, read.message[:_MAX_TEXT], read.last_transition_time)
