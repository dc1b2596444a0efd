"""An API server with our CRDs, and stores on it."""

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.jobs.gangs import RIGHTS as GANG_RIGHTS
from supervisor.jobs.kind import AnyKind
from supervisor.jobs.queues.kueue.workloads import RIGHTS as KUEUE_RIGHTS
from supervisor.jobs.registry import KINDS
from supervisor.store.kubernetes import KubernetesStore, KubernetesStoreOptions
from tests.supervisor.store.store_behaviour import opened
from tests.testkit.controlplane.api import Api, ObjectMissing, ObjectRefused, client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.commands import Flags
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

_CRDS = Path(__file__).parents[3] / "charts" / "elastic-job-supervisor" / "files" / "crds"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OURS = "/apis/job-supervisor.kube-ai.io/v1alpha1"
_GROUP = "job-supervisor.kube-ai.io"
_DEFAULT = "/api/v1/namespaces/default"
CLUSTER_RULES: tuple[Mapping[str, Any], ...] = (
    {
        "apiGroups": [_GROUP],
        "resources": ["reclaimnotices", "supervisedjobs"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {
        "apiGroups": [_GROUP],
        "resources": ["supervisedjobs", "supervisedjobs/status", "reclaimnotices/status"],
        "verbs": ["patch"],
    },
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
    {"nonResourceURLs": ["/openid/v1/jwks", "/.well-known/openid-configuration"], "verbs": ["get"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["mutatingwebhookconfigurations"],
        "resourceNames": ["elastic-job-supervisor"],
        "verbs": ["get", "patch"],
    },
)
"""What the supervisor may do in the whole cluster, whatever jobs it supervises."""

SIGN_IN_RULES: tuple[Mapping[str, Any], ...] = (
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
)
"""What it may do besides where users of the cluster sign in to the status page."""

_POD_RULE: Mapping[str, Any] = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch", "delete"]}

COMMON_RULES = (*CLUSTER_RULES, _POD_RULE)
"""What it may do for every kind of job: what the page on permissions lists."""


def job_rules(kinds: Sequence[AnyKind]) -> tuple[Mapping[str, Any], ...]:
    """What the supervisor may do in the namespaces of its jobs, for these kinds and the queues of any."""
    rights = (*(right for kind in kinds for right in kind.rights), *KUEUE_RIGHTS, *GANG_RIGHTS)
    needed = (
        {"apiGroups": [right.group], "resources": list(right.resources), "verbs": list(right.verbs)} for right in rights
    )
    return (_POD_RULE, *needed)


RULES = (*CLUSTER_RULES, *job_rules(KINDS))

OWN_RULES = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["job-supervisor"],
        "verbs": ["get", "list", "watch", "patch"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["create"]},
    {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": ["elastic-job-supervisor-keys"],
        "verbs": ["get"],
    },
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": ["elastic-job-supervisor-ca"],
        "verbs": ["get", "patch"],
    },
)
"""And in its own namespace."""

KEEPER_RULES: tuple[Mapping[str, Any], ...] = (
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
)
"""The state keeper may do no more than this, in the whole cluster."""

_KIND = {"apiVersion": "job-supervisor.kube-ai.io/v1alpha1", "kind": "ReclaimNotice"}
_FIRST = {"source": "source", "subject": {"kind": "node", "name": "node", "uid": "uid"}, "episode": 1}
NOTICES = f"{_OURS}/reclaimnotices"
JOBS = f"{_OURS}/supervisedjobs"


@contextmanager
def api_server(
    programs: Mapping[BinaryProgram, Path], directory: Path, more: Flags = MappingProxyType({})
) -> Iterator[ControlPlane]:
    """An etcd and an API server, with further flags. Nothing runs pods or controllers."""
    plane = ControlPlane(programs, directory, more)
    try:
        for program in (BinaryProgram.ETCD, BinaryProgram.API_SERVER):
            plane.launch(program)
        plane.wait_ready(BinaryProgram.API_SERVER)
        yield plane
    finally:
        plane.stop()


async def define(api: Api) -> None:
    """Creates our CRDs if they are missing, and waits until the API server serves them, also after a restart."""
    for file in sorted(_CRDS.glob("*.yaml")):
        definition = document(file.read_text())
        # Not all definitions in a list: those of the kinds' operators are megabytes.
        try:
            await api.get(f"{_DEFINITIONS}/{definition['metadata']['name']}")
        except ObjectMissing:
            await api.create(_DEFINITIONS, definition)
    for path in (NOTICES, JOBS):

        async def listed(path: str = path) -> Any:
            with suppress(ObjectRefused):  # 404 and then 429 for as long as it is being prepared.
                return await api.get(path)
            return None

        await until(listed, f"{path} to be served")


async def _warm(api: Api) -> None:
    """The first write of a kind takes up to 2 s, which is not what a test is to wait for."""
    await api.create(NOTICES, {**_KIND, "metadata": {"name": "first"}, "spec": _FIRST})


async def clear(api: Api) -> None:
    await api.delete(NOTICES)
    for job in (await api.get(JOBS))["items"]:
        await api.delete(job_path(job["metadata"]["name"], job["metadata"]["namespace"]))


async def empty(api: Api) -> None:
    """Deletes the nodes, and the pods and Events of the namespace "default"; nothing runs there that would end pods."""
    for path in ("/api/v1/nodes", f"{_DEFAULT}/pods?gracePeriodSeconds=0", f"{_DEFAULT}/events"):
        await api.delete(path)


def job_path(name: str, namespace: str = "default") -> str:
    return f"{_OURS}/namespaces/{namespace}/supervisedjobs/{name}"


@dataclass(frozen=True, slots=True)
class InstalledPlace:
    """An API server with our CRDs. Tests read its objects, and open stores on it that have their minimal rights."""

    plane: ControlPlane
    api: Api
    kinds: Sequence[AnyKind] = KINDS
    namespaces: Sequence[str] = ()

    @property
    def kubeconfig(self) -> Path:
        """Of an account with the store's role for these kinds and namespaces; its namespace is "default"."""
        name = "-".join((*(kind.name for kind in self.kinds), *self.namespaces))
        return self.plane.cluster.directory / f"{name}.kubeconfig"

    async def store(self, **options: Any) -> KubernetesStore:
        settings = {"kubeconfig": str(self.kubeconfig), "timeout_seconds": 10.0, **options}
        return await KubernetesStore.open(KubernetesStoreOptions(**settings), Clock(), Bulkhead(Clock()))

    @asynccontextmanager
    async def opened(self, **options: Any) -> AsyncIterator[KubernetesStore]:
        async with opened(lambda: self.store(**options)) as store:
            yield store

    async def notices(self) -> list[Any]:
        return list((await self.api.get(NOTICES))["items"])

    async def table(self, path: str) -> list[dict[str, Any]]:
        headers = {
            "Authorization": f"Bearer {self.plane.cluster.token}",
            "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io",
        }
        trusted = ssl.create_default_context(cafile=str(self.plane.cluster.ca))
        async with aiohttp.request("GET", self.plane.cluster.url + path, headers=headers, ssl=trusted) as answer:
            table = await answer.json()
        shown = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
        every = [column["name"] for column in table["columnDefinitions"]]
        rows = [dict(zip(every, row["cells"], strict=True)) for row in table["rows"]]
        return [{name: row[name] for name in shown} for row in rows]

    async def half_a_notice(self, name: str, spec: Mapping[str, Any]) -> None:
        """As a supervisor of version 0.1 leaves it if it is killed between the two requests that a notice took."""
        await self.api.create(NOTICES, {**_KIND, "metadata": {"name": name}, "spec": spec})

    async def jobs(self) -> list[Any]:
        return list((await self.api.get(JOBS))["items"])


@asynccontextmanager
async def place(
    plane: ControlPlane, kinds: Sequence[AnyKind] = KINDS, namespaces: Sequence[str] = ()
) -> AsyncIterator[InstalledPlace]:
    async with client(plane.cluster) as api:
        await define(api)
        await clear(api)
        await _warm(api)
        await clear(api)
        own = InstalledPlace(plane, api, kinds, namespaces)
        if not own.kubeconfig.exists():
            await _account(own)
        yield own


async def _account(own: InstalledPlace) -> None:
    namespace = Namespace(own.plane.cluster, own.api)
    await own.api.create("/api/v1/namespaces", {"metadata": {"name": namespace.name}})
    cluster, of_jobs = own.plane.cluster, job_rules(own.kinds)
    if own.namespaces:
        await namespace.account("supervisor", cluster_rules=CLUSTER_RULES)
        for name in own.namespaces:
            await Namespace(cluster, own.api, name).role("supervisor", namespace.name, of_jobs)
        await Namespace(cluster, own.api, "default").role("supervisor", namespace.name, OWN_RULES)
    else:
        await namespace.account("supervisor", cluster_rules=(*CLUSTER_RULES, *of_jobs, *OWN_RULES))
    write_kubeconfig(own.kubeconfig, cluster.url, cluster.ca, await namespace.token("supervisor"), "default")
