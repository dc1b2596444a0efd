"""Where the hosts of jobs are. Pure."""

from collections.abc import Iterable, Mapping

from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host


def placements_of(pods: Iterable[Pod]) -> Mapping[Host, Placement]:
    """The placements of the hosts that these pods are; pods that have ended are none.

    A pod that is about to end and its replacement may be one host. Then the replacement counts.
    """
    present = [pod for pod in pods if not pod.over]
    return {pod.host: _placement(pod) for pod in sorted(present, key=lambda pod: pod.deleted_at is None)}


def _placement(pod: Pod) -> Placement:
    return Placement(pod.metadata.uid, Host(pod.node), terminating=pod.deleted_at is not None)
