"""The real Kueue, outside a pod, beside the real controllers of its jobs. Its admission webhooks are not installed."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import trustme
import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.binaries import Operator
from tests.testkit.controlplane.running import Cluster
from tests.testkit.waiting import until

NAME = "kueue"
# The pins of the version that is run, such as kueue-0.14.
PINS = os.environ.get("KUEUE", NAME)
QUEUES_TRAIN_JOBS = PINS != NAME
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_FRAMEWORKS = [
    "batch/job",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/mpijob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    # Earlier ones do not know it.
    *(["trainer.kubeflow.org/trainjob"] if QUEUES_TRAIN_JOBS else []),
]


@contextmanager
def queueing(operator: Operator, cluster: Cluster) -> Iterator[None]:
    """Kueue, for the whole cluster."""
    asyncio.run(_define(cluster, operator.module))
    command = [
        *("setpriv", "--pdeathsig", "KILL"),
        str(operator.program),
        f"--config={_configuration(cluster)}",
        # It would need the configuration of a pod.
        "--feature-gates=VisibilityOnDemand=false",
    ]
    with (cluster.directory / f"{NAME}.log").open("ab") as log:
        environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _configuration(cluster: Cluster) -> Path:
    host = urlsplit(cluster.url).hostname
    certificates = cluster.directory / f"{NAME}-certificates"
    certificates.mkdir()
    issued = trustme.CA().issue_cert(str(host))
    issued.cert_chain_pems[0].write_to_path(certificates / "tls.crt")
    issued.private_key_pem.write_to_path(certificates / "tls.key")
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{host}:8081"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host, "port": 9443, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": _FRAMEWORKS},
    }
    path = cluster.directory / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return path


async def _define(cluster: Cluster, module: Path) -> None:
    async with client(cluster) as api:
        for path in sorted((module / "config" / "components" / "crd" / "bases").iterdir()):
            definition = yaml.safe_load(path.read_text(encoding="utf-8"))
            await api.create(_DEFINITIONS, definition)
            await _established(api, definition["metadata"]["name"])


async def _established(api: Api, name: str) -> None:
    async def established() -> bool:
        status = (await api.get(f"{_DEFINITIONS}/{name}")).get("status", {})
        return ("Established", "True") in {(each["type"], each["status"]) for each in status.get("conditions") or ()}

    await until(established, f"{name} is defined")
