"""The real training-operator, outside a pod."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.kinds.operators import built, certificate_copied, define, free_port, says_ready, started
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

NAME = "training-operator"
NAMESPACE = "kubeflow"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}-webhook-cert"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@contextmanager
def training_operator(cluster: RunningCluster, *kinds: str) -> Iterator[None]:
    """The operator, for the whole cluster and these kinds; it is ready once the block begins."""
    operator = built(NAME)
    directory = cluster.directory / NAME
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    asyncio.run(_prepare(cluster, operator.module, kinds))
    health, webhook = free_port(), free_port()
    command = [
        str(operator.program),
        f"-kubeconfig={cluster.kubeconfig}",
        *(f"-enable-scheme={kind}" for kind in kinds),
        "-metrics-bind-address=0",
        f"-health-probe-bind-address=127.0.0.1:{health}",
        f"-webhook-server-port={webhook}",
    ]
    environment = {**os.environ, "MY_POD_NAMESPACE": NAMESPACE, "TMPDIR": str(directory)}
    # In a pod its certificate is a mounted Secret, which it fills itself; outside one somebody has to copy it.
    with started(NAME, command, cluster, environment) as first:
        asyncio.run(certificate_copied(cluster, SECRET, certificates))
        first.kill()
    with started(NAME, command, cluster, environment) as process:

        def is_ready() -> bool:
            assert process.poll() is None, f"{NAME} has ended"
            return says_ready(health)

        asyncio.run(_until(is_ready))
        yield


async def _until(is_ready: Callable[[], bool]) -> None:
    await until(is_ready, f"{NAME} is ready", every=0.1)


async def _prepare(cluster: RunningCluster, module: Path, kinds: Sequence[str]) -> None:
    async with client(cluster) as api:
        await prepare(api, module, kinds)


async def prepare(api: Api, module: Path, kinds: Sequence[str]) -> None:
    """Defines these kinds as the Go module has them, and creates what the operator fills: its Secret and webhooks."""
    for kind in kinds:
        file = module / "manifests" / "base" / "crds" / f"kubeflow.org_{kind}s.yaml"
        await define(api, file.read_text(encoding="utf-8"))
    await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    await api.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": f"{NAME}-webhook-cert"}})
    await api.create(_WEBHOOKS, {"metadata": {"name": f"validator.{NAME}.kubeflow.org"}, "webhooks": []})
