"""The real mpi-operator, outside a pod."""

import asyncio
import subprocess  # noqa: TC003 - its type is checked as a test runs
from collections.abc import Iterator
from contextlib import contextmanager

from tests.controlplane.kinds.operators import built, define, started
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

NAME = "mpi-operator"
_QUICK = ("-kube-api-qps=100", "-kube-api-burst=200")
"""Its own 5 requests a second make it wait for itself in tests that follow each other."""


@contextmanager
def mpi_operator(cluster: RunningCluster) -> Iterator[None]:
    """The operator, for the whole cluster; it leads once the block begins."""
    operator = built(NAME)
    manifest = (operator.module / "manifests" / "base" / "kubeflow.org_mpijobs.yaml").read_text(encoding="utf-8")
    asyncio.run(_prepare(cluster, manifest))
    command = [str(operator.program), f"-kubeConfig={cluster.kubeconfig}", f"-lock-namespace={NAME}", *_QUICK]
    with started(NAME, command, cluster) as process:
        asyncio.run(_until_it_leads(cluster, process))
        yield


async def _prepare(cluster: RunningCluster, manifest: str) -> None:
    async with client(cluster) as api:
        await define(api, manifest)
        await api.create("/api/v1/namespaces", {"metadata": {"name": NAME}})


async def _until_it_leads(cluster: RunningCluster, process: "subprocess.Popen[bytes]") -> None:
    async with client(cluster) as api:

        async def leads() -> bool:
            assert process.poll() is None, "mpi-operator has ended"
            lease = await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAME}/leases/{NAME}")
            return bool(lease["spec"].get("holderIdentity"))

        await until(leads, "mpi-operator leads")
