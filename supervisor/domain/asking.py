"""What a person can ask for: of a job to be suspended, stopped or resumed, of a node to be in a drill or drained."""

from dataclasses import dataclass

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import RequestKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerJob:
    """Suspend or stop a job; `kind` None withdraws such a request. `reason` is for people."""

    job: JobName
    kind: RequestKind | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDrill:
    """Hold a drill on a node that ends `lead` seconds from now at the latest; None ends it.

    Without a node, it ends on all of them.
    """

    node: Host | None
    lead: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """Empty a node within `lead` seconds; None ends the drain. `reason` is for people."""

    node: Host
    lead: float | None
    reason: str = ""


class DeniedError(Exception):
    """The person is known, and may not ask for this. The message says who may."""


class NotTakenError(Exception):
    """The cluster does not take what somebody has asked for. The message says why."""


Asked = SteerJob | HoldDrill | DrainNode
