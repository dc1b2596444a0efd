"""The real controller of JobSets, outside a pod, with its admission webhooks for them."""

import asyncio
import os
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme
import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from tests.controlplane.operators import define, started
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.binaries import Operator
from tests.testkit.controlplane.running import Cluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import documents

NAME = "jobset"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_COMPONENTS = Path("config", "components")
# Others than those of the operators that may run beside it.
_PORT, _HEALTH_PORT = 9444, 8082


@contextmanager
def jobset_controller(operator: Operator, cluster: Cluster) -> Iterator[None]:
    """The controller, for the whole cluster; it takes JobSets once the block begins."""
    host = str(urlsplit(cluster.url).hostname)
    directory = cluster.directory / NAME
    directory.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert(host)
    issued.cert_chain_pems[0].write_to_path(directory / "tls.crt")
    issued.private_key_pem.write_to_path(directory / "tls.key")
    command = [str(operator.program), f"--config={_configuration(directory, host)}"]
    asyncio.run(_prepare(cluster, operator.module / _COMPONENTS, f"https://{host}:{_PORT}", authority.cert_pem))
    with started(NAME, command, cluster, {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}):
        asyncio.run(_answers(host))
        yield


def _configuration(directory: Path, host: str) -> Path:
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{host}:{_HEALTH_PORT}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": host, "port": _PORT, "certDir": str(directory)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    path = directory / "configuration.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    return path


async def _prepare(cluster: Cluster, components: Path, url: str, authority: trustme.Blob) -> None:
    async with client(cluster) as api:
        for path in sorted((components / "crd" / "bases").iterdir()):
            await define(api, path.read_text(encoding="utf-8"))
        manifests = (components / "webhook" / "manifests.yaml").read_text(encoding="utf-8")
        for configuration in documents(manifests):
            await _register(api, configuration, url, authority)


async def _register(api: Api, configuration: Any, url: str, authority: trustme.Blob) -> None:
    """Registers the webhooks for JobSets; those for pods only check where an exclusive JobSet places its pods."""
    webhooks = [each for each in configuration["webhooks"] if each["rules"][0]["resources"] == ["jobsets"]]
    for webhook in webhooks:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"{url}{path}", "caBundle": b64encode(authority.bytes()).decode("ascii")}
    registered = {**configuration, "metadata": {"name": f"{NAME}-{configuration['metadata']['name']}"}}
    await api.create(f"{_WEBHOOKS}/{configuration['kind'].lower()}s", {**registered, "webhooks": webhooks})


async def _answers(host: str) -> None:
    """Returns once the webhooks answer, without which the API server refuses all JobSets."""

    def answers() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex((host, _PORT)) == 0

    await until(answers, "the webhooks of JobSets answer")
