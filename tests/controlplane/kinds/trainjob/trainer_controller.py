"""The real controllers of Kubeflow Trainer, outside a pod, with their admission webhooks: the oldest and the newest."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from tests.controlplane.kinds.operators import (
    OperatorWebhooks,
    built,
    certificate_copied,
    certified,
    define,
    free_port,
    says_ready,
    started,
)
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

NAME = "trainer"
NEWEST = "trainer-2.3"
"""The pins of a version that can restart pods in place, with a version of JobSet that can."""

_NAMESPACE = "kubeflow-system"
_SECRETS = f"/api/v1/namespaces/{_NAMESPACE}/secrets"
_SECRET = "kubeflow-trainer-webhook-cert"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_WEBHOOK = "validator.trainer.kubeflow.org"
# The host for which it makes its certificate; the edits of its source have it listen there alone.
_HOST = "localhost"
_MANIFESTS = Path("manifests", "base")
# Where a webhook of the newest version looks for its certificate, below its directory for temporary files.
_CERTIFICATES = Path("k8s-webhook-server", "serving-certs")
# Others than those of the controller of JobSets beside it.
_PORT, _HEALTH_PORT = 9445, 8083
_RESOURCES = {"clustertrainingruntimes", "trainingruntimes", "trainjobs"}


@contextmanager
def trainer_controller(cluster: RunningCluster) -> Iterator[None]:
    """The controller, for the whole cluster, beside that of JobSets; it takes TrainJobs once the block begins."""
    operator = built(NAME)
    directory = cluster.directory / NAME
    certificates = directory / _CERTIFICATES
    certificates.mkdir(parents=True)
    health, webhook = free_port(), free_port()
    asyncio.run(_prepare(cluster, operator.module / _MANIFESTS, f"https://{_HOST}:{webhook}"))
    command = [
        str(operator.program),
        f"-kubeconfig={cluster.kubeconfig}",
        f"-health-probe-bind-address=127.0.0.1:{health}",
        f"-webhook-server-port={webhook}",
        f"-webhook-service-name={_HOST}",
    ]
    environment = {**os.environ, "TMPDIR": str(directory)}
    # It waits longer and longer for the certificate that a pod would mount, so it is started again with it.
    with started(NAME, command, cluster, environment):
        asyncio.run(certificate_copied(cluster, f"{_SECRETS}/{_SECRET}", certificates))
    with started(NAME, command, cluster, environment):
        asyncio.run(_ready(cluster, health))
        yield


@contextmanager
def newest_trainer_controller(cluster: RunningCluster) -> Iterator[None]:
    """As `trainer_controller`, of the newest version. It reads its settings from a file, and takes any certificate."""
    operator, host = built(NEWEST), str(urlsplit(cluster.url).hostname)
    directory = cluster.directory / NAME
    certificates = directory / _CERTIFICATES
    certificates.mkdir(parents=True)
    webhooks = OperatorWebhooks(NAME, host, _PORT, certified(certificates, host).cert_pem)
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{host}:{_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host, "port": _PORT},
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
    }
    settings = directory / "configuration.yaml"
    settings.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    asyncio.run(_register(cluster, operator.module / _MANIFESTS, webhooks))
    command = [str(operator.program), f"-config={settings}", f"-kubeconfig={cluster.kubeconfig}"]
    with started(NAME, command, cluster, {**os.environ, "TMPDIR": str(directory)}):
        asyncio.run(webhooks.answer())
        yield


async def _register(cluster: RunningCluster, manifests: Path, webhooks: OperatorWebhooks) -> None:
    async with client(cluster) as api:
        await _define(api, manifests)
        registrations = (manifests / "webhook" / "manifests.yaml").read_text(encoding="utf-8")
        await webhooks.register(api, registrations, _RESOURCES)


async def _define(api: Api, manifests: Path) -> None:
    for path in sorted((manifests / "crds").glob("trainer.kubeflow.org_*.yaml")):
        await define(api, path.read_text(encoding="utf-8"))


async def _prepare(cluster: RunningCluster, manifests: Path, url: str) -> None:
    async with client(cluster) as api:
        await _define(api, manifests)
        await api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        await api.create(_SECRETS, {"metadata": {"name": _SECRET}})
        configuration = document((manifests / "webhook" / "manifests.yaml").read_text(encoding="utf-8"))
        webhooks = [_at(url, each) for each in configuration["webhooks"]]
        await api.create(_WEBHOOKS, {**configuration, "metadata": {"name": _WEBHOOK}, "webhooks": webhooks})


def _at(url: str, webhook: Any) -> Any:
    return {**webhook, "clientConfig": {"url": f"{url}{webhook['clientConfig']['service']['path']}"}}


async def _ready(cluster: RunningCluster, port: int) -> None:
    """Returns once the webhooks answer, and the API server trusts them."""
    await until(lambda: says_ready(port), f"{NAME} is ready", every=0.1)
    async with client(cluster) as api:

        async def trusted() -> bool:
            webhooks = (await api.get(f"{_WEBHOOKS}/{_WEBHOOK}"))["webhooks"]
            return all(each["clientConfig"].get("caBundle") for each in webhooks)

        await until(trusted, f"the webhooks of {NAME} are trusted")
