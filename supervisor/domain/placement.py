"""The placement of hosts on a cluster."""

from dataclasses import dataclass

from supervisor.domain.ids import Host


@dataclass(frozen=True, slots=True)
class Placement:
    """The uid of a host's pod, and the pod's node; empty while it is not bound.

    `terminating`: the pod was asked to terminate.
    """

    pod: str
    node: Host
    terminating: bool = False
