"""Where the hosts of a cluster's job are."""

from dataclasses import dataclass

from supervisor.domain.ids import Host


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod that a host is, by its uid, and the node that the pod is bound to; empty while it is bound to none.

    `terminating`: it was asked to end.
    """

    pod: str
    node: Host
    terminating: bool = False
