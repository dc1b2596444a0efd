"""The real Kueue, outside a pod, beside the real controllers of its jobs, with its admission webhooks."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from tests.controlplane.kinds.operators import OperatorWebhooks, built, certified, define, started
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.running import RunningCluster

NAME = "kueue"
# The pins of the version that is run, such as kueue-0.14.
PINS = os.environ.get("KUEUE", NAME)
QUEUES_TRAIN_JOBS = PINS != NAME
_FRAMEWORKS = [
    "batch/job",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/mpijob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    # Earlier ones do not know it.
    *(["trainer.kubeflow.org/trainjob"] if QUEUES_TRAIN_JOBS else []),
]

_ADMITTED = {
    *("clusterqueues", "cohorts", "resourceflavors", "workloads"),
    *(f"{name.rpartition('/')[2]}s" for name in _FRAMEWORKS),
}
"""What its webhooks are asked about. Those for pods and Deployments are for frameworks that are not enabled here."""
_PORT = 9443


@contextmanager
def kueue(cluster: RunningCluster) -> Iterator[None]:
    """Kueue, for the whole cluster."""
    operator = built(PINS)
    host, certificates = str(urlsplit(cluster.url).hostname), cluster.directory / f"{NAME}-certificates"
    certificates.mkdir()
    configuration = _configuration(cluster, host, certificates)
    webhooks = OperatorWebhooks(NAME, host, _PORT, certified(certificates, host).cert_pem)
    asyncio.run(_prepare(cluster, operator.module, webhooks))
    command = [
        str(operator.program),
        f"--config={configuration}",
        # It would need the configuration of a pod.
        "--feature-gates=VisibilityOnDemand=false",
    ]
    with started(NAME, command, cluster, {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}):
        asyncio.run(webhooks.answer())
        yield


def _configuration(cluster: RunningCluster, host: str, certificates: Path) -> Path:
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{host}:8081"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host, "port": _PORT, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": _FRAMEWORKS},
    }
    path = cluster.directory / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return path


async def _prepare(cluster: RunningCluster, module: Path, webhooks: OperatorWebhooks) -> None:
    components = module / "config" / "components"
    async with client(cluster) as api:
        for path in sorted((components / "crd" / "bases").iterdir()):
            await define(api, path.read_text(encoding="utf-8"))
        manifests = (components / "webhook" / "manifests.yaml").read_text(encoding="utf-8")
        await webhooks.register(api, manifests, _ADMITTED)
