"""Real operators outside a pod, on a control plane whose pods run until somebody ends them."""

import base64
import http.client
import re
import socket
import subprocess
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from supervisor.domain.ids import JobName
from supervisor.jobs.kind import AnyKind, JobState
from tests.testkit.controlplane.api import Api, client
from tests.testkit.controlplane.binaries import NoGo, OperatorBinary, operator
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document, documents

_ROOT = Path(__file__).parents[3]
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"


def built(name: str, program: str = "") -> OperatorBinary:
    """An operator, or one of its programs.

    Without Go the test is skipped; with Go it fails if nobody has built them.
    """
    try:
        return operator(name, program)
    except NoGo as reason:
        pytest.skip(str(reason))


async def define(api: Api, manifest: str | Mapping[str, Any]) -> None:
    """Creates a CRD, and returns once the API server serves it, because operators end without their CRDs."""
    definition = document(manifest) if isinstance(manifest, str) else manifest
    await api.create(_DEFINITIONS, definition)

    async def established() -> bool:
        status = (await api.get(f"{_DEFINITIONS}/{definition['metadata']['name']}")).get("status", {})
        return ("Established", "True") in {(each["type"], each["status"]) for each in status.get("conditions") or ()}

    await until(established, f"{definition['metadata']['name']} is defined")


@dataclass(frozen=True, slots=True)
class OperatorWebhooks:
    """The admission webhooks that the process of an operator serves; `authority` has signed its certificate."""

    name: str
    host: str
    port: int
    authority: trustme.Blob

    async def register(self, api: Api, manifests: str, resources: Container[str]) -> None:
        """Registers those for these resources."""
        bundle = base64.b64encode(self.authority.bytes()).decode("ascii")
        for configuration in documents(manifests):
            webhooks = [each for each in configuration["webhooks"] if each["rules"][0]["resources"][0] in resources]
            for webhook in webhooks:
                url = f"https://{self.host}:{self.port}{webhook['clientConfig']['service']['path']}"
                webhook["clientConfig"] = {"url": url, "caBundle": bundle}
            registered = {**configuration, "metadata": {"name": f"{self.name}-{configuration['metadata']['name']}"}}
            await api.create(f"{_WEBHOOKS}/{configuration['kind'].lower()}s", {**registered, "webhooks": webhooks})

    async def answer(self) -> None:
        """Returns once they answer, without which the API server refuses all of their objects."""

        def answers() -> bool:
            with socket.socket() as asked:
                return asked.connect_ex((self.host, self.port)) == 0

        await until(answers, f"the webhooks of {self.name} answer")


def documented(kind: AnyKind) -> list[list[Any]]:
    """The sample job of a kind and those of its page, each as the last one of the manifests that it comes with."""
    sample = (_ROOT / "examples" / f"{kind.name}.yaml").read_text(encoding="utf-8")
    page = (_ROOT / "docs" / "kinds" / f"{kind.name}.md").read_text(encoding="utf-8")
    found = [documents(text) for text in (sample, *re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))]
    return [manifests for manifests in found if manifests[-1].get("kind") == kind.resource.kind]


async def documented_jobs(api: Api, kind: AnyKind, namespace: Namespace) -> list[tuple[int, int]]:
    """The smallest and the requested size of the sample job of a kind and of those of its page, as they are observed.

    The API server completes them, and refuses fields that their definition does not have.
    """
    path = f"/apis/{kind.resource.api_version}/namespaces/{namespace.name}/{kind.resource.plural}"
    sizes = []
    for [job] in documented(kind):
        accepted = await api.create(f"{path}?fieldValidation=Strict&dryRun=All", job)
        accepted["metadata"].setdefault("resourceVersion", "1")
        sizes.append(observed_size(kind, kind.decode(msgspec.json.encode(accepted))))
    return sizes


def observed_size(kind: AnyKind, job: Any) -> tuple[int, int]:
    """The smallest and the requested size of a job that has no pods yet."""
    supervised = kind.observe(JobState.of(kind, JobName(job.metadata.name), job, []), None, 0.0)
    assert supervised is not None
    return supervised.spec.min_workers, supervised.spec.requested_workers


@contextmanager
def started(
    name: str, command: Sequence[str], cluster: RunningCluster, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a program of an operator, which ends with this process. Its log is beside the logs of the cluster."""
    guarded = ["setpriv", "--pdeathsig", "KILL", *command]
    with (cluster.directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(guarded, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def certified(directory: Path, host: str) -> trustme.CA:
    """Writes a certificate for a host, and its key, by the names that webhooks look for; returns who has signed it."""
    authority = trustme.CA()
    issued = authority.issue_cert(host)
    issued.cert_chain_pems[0].write_to_path(directory / "tls.crt")
    issued.private_key_pem.write_to_path(directory / "tls.key")
    return authority


async def certificate_copied(cluster: RunningCluster, secret: str, directory: Path) -> None:
    """Copies the certificate that an operator makes in a Secret, which in a pod is mounted, once it is there."""
    async with client(cluster) as api:

        async def data() -> Any:
            return (await api.get(secret)).get("data")

        found: dict[str, str] = dict(await until(data, f"{secret} has a certificate"))
    for name, content in found.items():
        (directory / name).write_bytes(base64.b64decode(content))


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def says_ready(port: int) -> bool:
    """Whether an operator says so at its port for health."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
