"""The real Volcano, outside a pod: its controllers, its scheduler and its admission webhooks."""

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.controlplane.kinds.operators import built, certified, define, started
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

NAME = "volcano"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_QUEUE = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
_PORT = 8443
_SCHEDULING = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
- plugins:
  - name: predicates
  - name: proportion
"""


@contextmanager
def volcano(cluster: RunningCluster) -> Iterator[None]:
    """Volcano, for the whole cluster; it takes jobs once the block begins."""
    programs = {name: built(NAME, name) for name in ("controller-manager", "scheduler", "webhook-manager")}
    host = str(urlsplit(cluster.url).hostname)
    directory = cluster.directory / NAME
    directory.mkdir()
    certified(directory, host).cert_pem.write_to_path(directory / "ca.crt")
    (directory / "scheduling.yaml").write_text(_SCHEDULING, encoding="utf-8")
    asyncio.run(_prepare(cluster, programs["scheduler"].module / "config" / "crd", host))
    with ExitStack() as running:
        for name, options in _options(directory, host).items():
            command = [str(programs[name].program), f"--kubeconfig={cluster.kubeconfig}", *options]
            running.enter_context(started(f"{NAME}-{name}", command, cluster))
        asyncio.run(_ready(cluster, host))
        yield


def _options(directory: Path, host: str) -> Mapping[str, list[str]]:
    certificate = [f"--{option}={directory / file}" for option, file in _CERTIFICATE.items()]
    return {
        "controller-manager": ["--leader-elect=false"],
        "scheduler": [
            "--leader-elect=false",
            f"--scheduler-conf={directory / 'scheduling.yaml'}",
            f"--listen-address={host}:8080",
            "--cache-dumper=false",
        ],
        "webhook-manager": [
            *certificate,
            f"--listen-address={host}",
            f"--port={_PORT}",
            f"--webhook-url=https://{host}:{_PORT}",
            "--enabled-admission=/jobs/mutate,/jobs/validate",
        ],
    }


_CERTIFICATE = {"tls-cert-file": "tls.crt", "tls-private-key-file": "tls.key", "ca-cert-file": "ca.crt"}


async def _prepare(cluster: RunningCluster, definitions: Path, host: str) -> None:
    async with client(cluster) as api:
        for group in ("volcano", "jobflow"):
            for path in sorted((definitions / group / "bases").iterdir()):
                await define(api, path.read_text(encoding="utf-8"))
        for verb, kind in (("mutate", "Mutating"), ("validate", "Validating")):
            await _register(api, verb, f"{kind}WebhookConfiguration", f"https://{host}:{_PORT}")


async def _register(api: Api, verb: str, kind: str, url: str) -> None:
    """Registers a webhook under the name by which its program looks for it, to add who has signed its certificate."""
    operations = ["CREATE"] if verb == "mutate" else ["CREATE", "UPDATE"]
    rule = {"apiGroups": ["batch.volcano.sh"], "apiVersions": ["v1alpha1"], "resources": ["jobs"]}
    webhook = {
        "name": f"{verb}job.volcano.sh",
        "clientConfig": {"url": f"{url}/jobs/{verb}"},
        "rules": [{**rule, "operations": operations}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
    }
    metadata = {"name": f"volcano-admission-service-jobs-{verb}"}
    await api.create(f"{_WEBHOOKS}/{kind.lower()}s", {"kind": kind, "metadata": metadata, "webhooks": [webhook]})


async def _ready(cluster: RunningCluster, host: str) -> None:
    def answers() -> bool:
        with socket.socket() as asked:
            return asked.connect_ex((host, _PORT)) == 0

    async with client(cluster) as api:

        async def is_open() -> Any:
            return (await api.get(_QUEUE)).get("status", {}).get("state") == "Open"

        await until(is_open, "the default queue is open")
    await until(answers, "the webhooks answer")
