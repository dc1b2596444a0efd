"""The real controller of Kubeflow Trainer, outside a pod, with its admission webhooks."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.controlplane.kinds.operators import built, certificate_copied, define, free_port, says_ready, started
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

NAME = "trainer"
_NAMESPACE = "kubeflow-system"
_SECRETS = f"/api/v1/namespaces/{_NAMESPACE}/secrets"
_SECRET = "kubeflow-trainer-webhook-cert"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_WEBHOOK = "validator.trainer.kubeflow.org"
# The host for which it makes its certificate; the edits of its source have it listen there alone.
_HOST = "localhost"


@contextmanager
def trainer_controller(cluster: RunningCluster) -> Iterator[None]:
    """The controller, for the whole cluster, beside that of JobSets; it takes TrainJobs once the block begins."""
    operator = built(NAME)
    directory = cluster.directory / NAME
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True)
    health, webhook = free_port(), free_port()
    asyncio.run(_prepare(cluster, operator.module / "manifests" / "base", f"https://{_HOST}:{webhook}"))
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


async def _prepare(cluster: RunningCluster, manifests: Path, url: str) -> None:
    async with client(cluster) as api:
        for path in sorted((manifests / "crds").glob("trainer.kubeflow.org_*.yaml")):
            await define(api, path.read_text(encoding="utf-8"))
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
