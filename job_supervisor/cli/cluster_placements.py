"""Lists where the hosts of a cluster's jobs are."""

from collections import defaultdict

from job_supervisor.cli.resource_status import Placements
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import PODS, Pod, placements_of, pod_or_outline
from supervisor.domain.ids import JobName
from supervisor.jobs.registry import KINDS, pod_labels


async def placements_by_job(server: ApiServer, chosen: Selection) -> Placements:
    """The placements of the jobs of all kinds.

    Raises:
        ApiError: See `ResourceClient.list`.
    """
    labels = pod_labels()
    pods = await ResourceClient(server, PODS, lambda data: pod_or_outline(data, labels), chosen).list("0")
    found = defaultdict[JobName, list[Pod]](list)
    for pod in pods.objects:
        for reference in filter(None, (kind.reference(pod) for kind in KINDS)):
            found[reference.name].append(pod)
    return {job: placements_of(of_job) for job, of_job in found.items()}
