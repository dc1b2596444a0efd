"""The process of our operator for TrainingJobs, and the definitions of its resources as the chart has them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.operators import define, free_port, says_ready, started
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import documents

DEFINITIONS = Path(__file__).parents[3] / "charts/elastic-job-supervisor/files/trainingjob-operator/crds.yaml"


@contextmanager
def operating(cluster: RunningCluster, port: int, **settings: str) -> Iterator[None]:
    """Runs the operator; its probes are at that port."""
    environment = {
        **os.environ,
        "TRAININGJOB_OPERATOR_KUBECONFIG": str(cluster.kubeconfig),
        "TRAININGJOB_OPERATOR_PROBE_ADDRESS": f"127.0.0.1:{port}",
        **{f"TRAININGJOB_OPERATOR_{name.upper()}": value for name, value in settings.items()},
    }
    with started("trainingjob-operator", [sys.executable, "-m", "trainingjob_operator"], cluster, environment):
        yield


async def defined(cluster: RunningCluster) -> None:
    """Defines the resources."""
    async with client(cluster) as api:
        for definition in documents(DEFINITIONS.read_text(encoding="utf-8")):
            await define(api, definition)


async def ready(port: int) -> None:
    """Returns once the operator knows the objects of the cluster."""
    await until(lambda: says_ready(port), "the operator is ready")


__all__ = ["DEFINITIONS", "defined", "free_port", "operating", "ready"]
