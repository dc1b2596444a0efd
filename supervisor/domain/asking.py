"""Names what a person can ask for: that a job is suspended, stopped or resumed, that a node is drained or drilled."""

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
class BeginDrill:
    """Hold a drill on a node, which ends `lead` seconds from now at the latest."""

    node: Host
    lead: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndDrill:
    """End the drill on a node, or, with None, every drill."""

    node: Host | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginDrain:
    """Empty a node within `lead` seconds. `reason` is for people."""

    node: Host
    lead: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndDrain:
    """End the drain of a node."""

    node: Host


Asked = SteerJob | BeginDrill | EndDrill | BeginDrain | EndDrain


def signed(by: str, reason: str) -> str:
    """Returns the text that says who asks for something, and why."""
    return f"{by}: {reason}" if reason else by


class NotPermittedError(Exception):
    """The person is known, and may not ask for this. The message says who may."""


class UnknownSubjectError(Exception):
    """There is no such job or node. The message names it."""


class NotTakenError(Exception):
    """The cluster does not take what somebody has asked for. The message says why."""


class UncertainError(Exception):
    """It is not known whether the cluster has taken it."""
