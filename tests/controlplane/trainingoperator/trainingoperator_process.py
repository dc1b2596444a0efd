"""The real training-operator, outside a pod."""

import asyncio
import base64
import http.client
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.controlplane.operators import define, started
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import Operator
from tests.testkit.controlplane.running import Cluster
from tests.testkit.waiting import until

NAME = "training-operator"
_NAMESPACE = "kubeflow"
_SECRET = f"/api/v1/namespaces/{_NAMESPACE}/secrets/{NAME}-webhook-cert"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@contextmanager
def operating(operator: Operator, cluster: Cluster, *kinds: str) -> Iterator[None]:
    """The operator, for the whole cluster and these kinds; it is ready once the block begins."""
    directory = cluster.directory / NAME
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    definitions = operator.module / "manifests" / "base" / "crds"
    manifests = [(definitions / f"kubeflow.org_{kind}s.yaml").read_text(encoding="utf-8") for kind in kinds]
    asyncio.run(_prepare(cluster, manifests))
    health, webhook = _free_port(), _free_port()
    command = [
        str(operator.program),
        f"-kubeconfig={cluster.kubeconfig}",
        *(f"-enable-scheme={kind}" for kind in kinds),
        "-metrics-bind-address=0",
        f"-health-probe-bind-address=127.0.0.1:{health}",
        f"-webhook-server-port={webhook}",
    ]
    environment = {**os.environ, "MY_POD_NAMESPACE": _NAMESPACE, "TMPDIR": str(directory)}
    # In a pod its certificate is a mounted Secret, which it fills itself; outside one somebody has to copy it.
    with started(NAME, command, cluster, environment) as first:
        asyncio.run(_copy_certificate(cluster, certificates))
        first.kill()
    with started(NAME, command, cluster, environment) as process:

        def is_ready() -> bool:
            assert process.poll() is None, f"{NAME} has ended"
            return _answers(health)

        asyncio.run(_until(is_ready))
        yield


async def _until(is_ready: Callable[[], bool]) -> None:
    await until(is_ready, f"{NAME} is ready", every=0.1)


async def _prepare(cluster: Cluster, manifests: Sequence[str]) -> None:
    async with client(cluster) as api:
        for manifest in manifests:
            await define(api, manifest)
        await api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        await api.create(f"/api/v1/namespaces/{_NAMESPACE}/secrets", {"metadata": {"name": f"{NAME}-webhook-cert"}})
        await api.create(_WEBHOOKS, {"metadata": {"name": f"validator.{NAME}.kubeflow.org"}, "webhooks": []})


async def _copy_certificate(cluster: Cluster, directory: Path) -> None:
    async with client(cluster) as api:

        async def data() -> Any:
            return (await api.get(_SECRET)).get("data")

        found: dict[str, str] = dict(await until(data, f"{NAME} has made its certificate"))
    for name, content in found.items():
        (directory / name).write_bytes(base64.b64decode(content))


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
