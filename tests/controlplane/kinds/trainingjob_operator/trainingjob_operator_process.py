"""The process of our operator for TrainingJobs, and the definitions of its resources as the chart has them."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.controlplane.kinds.operators import define, free_port, says_ready, started
from tests.testkit.controlplane.api import ObjectRefused, client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import documents
from trainingjob_operator.groups import Gang

_DEFINITIONS = Path(__file__).parents[4] / "charts/elastic-job-supervisor/files/trainingjob-operator/crds.yaml"


@asynccontextmanager
async def operating(cluster: RunningCluster, namespace: str, gang: Gang = Gang.NONE) -> AsyncIterator[None]:
    """Runs the operator for the jobs of one namespace, and returns once it knows them."""
    port = free_port()
    environment = {
        **os.environ,
        "TRAININGJOB_OPERATOR_KUBECONFIG": str(cluster.kubeconfig),
        "TRAININGJOB_OPERATOR_NAMESPACE": namespace,
        "TRAININGJOB_OPERATOR_LEASE": "trainingjob-operator",
        "TRAININGJOB_OPERATOR_LEASE_NAMESPACE": namespace,
        # A Lease that does not exist is taken after this time: it may have been deleted while its holder counts on it.
        "TRAININGJOB_OPERATOR_LEASE_SECONDS": "3",
        "TRAININGJOB_OPERATOR_GANG": gang,
        "TRAININGJOB_OPERATOR_PROBE_ADDRESS": f"127.0.0.1:{port}",
    }
    name = f"trainingjob-operator-{namespace}"
    with started(name, [sys.executable, "-m", "trainingjob_operator"], cluster, environment):
        await until(lambda: says_ready(port), "the operator is ready")
        yield


async def defined(cluster: RunningCluster) -> None:
    """Defines the resources, unless they are: other tests define them for the stand-in for et-operator."""
    async with client(cluster) as api:
        for definition in documents(_DEFINITIONS.read_text(encoding="utf-8")):
            with suppress(ObjectRefused):
                await define(api, definition)
