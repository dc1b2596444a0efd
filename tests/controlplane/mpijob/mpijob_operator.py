"""The real mpi-operator, outside a pod, on a control plane whose pods run until somebody ends them."""

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import Operator, Program
from tests.testkit.controlplane.running import Cluster, ControlPlane, running
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

NAME = "mpi-operator"
_STAGES = Path(__file__).parent / "kwok_stages.yaml"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_QUICK = ("-kube-api-qps=100", "-kube-api-burst=200")
"""Its own 5 requests a second make it wait for itself in tests that follow each other."""


@contextmanager
def plane_of_running_pods(programs: Mapping[Program, Path], directory: Path) -> Iterator[ControlPlane]:
    with running(programs, directory, {Program.KWOK: {"config": _STAGES}}) as plane:
        yield plane


@contextmanager
def operating(operator: Operator, cluster: Cluster) -> Iterator[None]:
    """The operator, for the whole cluster; it leads once the block begins."""
    asyncio.run(_prepare(cluster, operator.module))
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        str(operator.program),
        f"-kubeConfig={cluster.kubeconfig}",
        f"-lock-namespace={NAME}",
        *_QUICK,
    ]
    with (cluster.directory / f"{NAME}.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        asyncio.run(_until_it_leads(cluster, process))
        yield
    finally:
        process.kill()
        process.wait()


async def _prepare(cluster: Cluster, module: Path) -> None:
    async with client(cluster) as api:
        definition = document((module / "manifests" / "base" / "kubeflow.org_mpijobs.yaml").read_text())
        await api.create(_DEFINITIONS, definition)
        await api.create("/api/v1/namespaces", {"metadata": {"name": NAME}})

        async def established() -> bool:
            status = (await api.get(f"{_DEFINITIONS}/{definition['metadata']['name']}")).get("status", {})
            return ("Established", "True") in {
                (each["type"], each["status"]) for each in status.get("conditions") or ()
            }

        # It ends at once where there are no MPIJobs.
        await until(established, "MPIJobs are defined")


async def _until_it_leads(cluster: Cluster, process: "subprocess.Popen[bytes]") -> None:
    async with client(cluster) as api:

        async def leads() -> bool:
            assert process.poll() is None, "mpi-operator has ended"
            lease = await api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAME}/leases/{NAME}")
            return bool(lease["spec"].get("holderIdentity"))

        await until(leads, "mpi-operator leads")
