"""Reads the member clusters of a Karmada hub through the hub's proxy, with the kubeconfig of the hub alone."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Self, TypeVar

import msgspec

from job_supervisor.cli import errors
from job_supervisor.cli.backend import HUB, Past, PastQuery, ReadableBackend, Readings, SeenStatus
from job_supervisor.cli.cluster_backend import ClusterBackend, connected
from job_supervisor.cli.cluster_status import job_of_object, labelled, named_object
from servicekit.clock import Clock
from servicekit.kubernetes import errors as api
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer, Call
from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase
from supervisor.observability.views import JobView, ProspectView

_GROUP = re.compile(r"cluster\.([a-z0-9][-a-z0-9.]{0,200}[a-z0-9])")
"""The group of a hub's clusters; `work.` and the same end is that of its bindings."""
_VERSION = re.compile(r"v[0-9]{1,3}((alpha|beta)[0-9]{1,3})?")
_USUAL = "cluster.karmada.io"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The form of a cluster's name, which becomes a part of a URL."""

_AT_ONCE = 16
"""Members that are read at the same time: each has one request under way, and a connection takes 32."""

_MEMBER_SECONDS = 20.0
"""The time limit of all requests to one member, each of which has 10 s."""

_NO_HUB = (
    "This cluster is no hub: it has no resource clusters/proxy. --members needs the kubeconfig or the context of a "
    "Karmada hub."
)

T = TypeVar("T")
R = TypeVar("R")


class _ServedVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _ServedGroup(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    preferred_version: _ServedVersion = _ServedVersion()


class _ServedGroups(msgspec.Struct, frozen=True):
    groups: tuple[_ServedGroup, ...] = ()


class _ServedResource(msgspec.Struct, frozen=True):
    name: str


class _ServedResources(msgspec.Struct, frozen=True):
    resources: tuple[_ServedResource, ...] = ()


class _BindingTarget(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""


class _BindingSuspension(msgspec.Struct, frozen=True):
    scheduling: bool = False


class _BindingSpec(msgspec.Struct, frozen=True):
    resource: _BindingTarget = _BindingTarget()
    clusters: tuple[msgspec.Raw, ...] = ()
    suspension: _BindingSuspension = _BindingSuspension()
    replicas: int = 0


class ResourceBinding(msgspec.Struct, frozen=True):
    """The decision of a hub about one object: the clusters in which it is."""

    metadata: Metadata
    spec: _BindingSpec = _BindingSpec()


class HeldJobs:
    """Implements `ReadableBackend` for the hub itself: the jobs that it holds back and that are in no cluster yet."""

    def __init__(self, server: ApiServer, clock: ClusterClock, namespace: str, clusters: Resource) -> None:
        self._server = server
        self._clock = clock
        self._namespace = namespace
        bindings = Resource(
            group=clusters.group.replace("cluster", "work", 1),
            version="v1alpha2",
            kind="ResourceBinding",
            plural="resourcebindings",
            namespaced=True,
        )
        chosen = Selection(namespace=namespace)
        self._bindings = ResourceClient(
            server, bindings, lambda data: msgspec.json.decode(data, type=ResourceBinding), chosen
        )

    async def status(self) -> SeenStatus:
        jobs, unseen = list[JobView](), list[str]()
        try:
            listed = await self._bindings.list()
        except api.ApiError as error:
            unseen.append(f"jobs that the hub holds back: {error}.")
        else:
            jobs = [job for each in listed.objects if (job := self._held(each)) is not None]
            unseen.extend(f"ResourceBinding {each.metadata.name}: it does not decode." for each in listed.unread)
        return SeenStatus(now=self._clock.now(), jobs=jobs, notices=[], unseen=unseen)

    async def labelled(self, selector: str) -> frozenset[JobName]:
        return await _told(labelled(self._server, self._namespace, selector), f"jobs by the labels {selector!r}")

    async def past(self, status: SeenStatus, wanted: PastQuery) -> Past:  # noqa: ARG002 - it has no past
        return Past()

    def _held(self, binding: ResourceBinding) -> JobView | None:
        """The job of a binding that a queue holds back; None for others, and for other kinds of objects."""
        spec, bound = binding.spec, binding.spec.resource
        name = job_of_object(bound.api_version.rpartition("/")[0], bound.kind, ObjectKey(bound.namespace, bound.name))
        if name is None or spec.clusters or not spec.suspension.scheduling:
            return None
        created, size = binding.metadata.creation_timestamp, max(0, spec.replicas)
        return JobView(
            job=name,
            phase=Phase.QUEUED,
            age_seconds=None if created is None else max(0.0, self._clock.now() - created.timestamp()),
            reason=f"The hub holds it back: ResourceBinding {binding.metadata.name} has spec.suspension.scheduling.",
            run=0,
            running=False,
            workers=[],
            exclusions=[],
            min_workers=size,
            max_workers=size,
            requested_workers=size,
            prospects=[ProspectView(what="its queue lets it go, and the hub places it in a cluster", seconds=None)],
        )


class HubMembers:
    """Implements `Clusters` for the members of a hub, and the hub itself; made with `open`."""

    def __init__(self, server: ApiServer, clock: ClusterClock, namespace: str) -> None:
        self._server = server
        self._clock = clock
        self._namespace = namespace
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._resource: Resource | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: str | None, context: str | None, namespace: str) -> AsyncIterator[Self]:
        """Connects to the hub.

        Raises:
            CliUsageError: There is no kubeconfig.
            CliSettingError: It is not usable.
        """
        async with connected(kubeconfig, context) as (server, clock):
            yield cls(server, clock, namespace)

    async def each(self, read: Callable[[ReadableBackend], Awaitable[T]]) -> Readings[T]:
        """Reads all members at the same time, and then the hub.

        Raises:
            CliError: The hub cannot be read, none of its members can, or `read` finds that the arguments are wrong.
        """
        if self._resource is None:
            self._resource = await _clusters_of(self._server)
        clusters = self._resource
        listed = await _told(ResourceClient(self._server, clusters, named_object).list(), "clusters at the hub")
        names = sorted(each.metadata.name for each in listed.objects)
        usable = [name for name in names if _NAME.fullmatch(name)]
        unseen = [f"cluster {name}: that is no name of a cluster." for name in names if name not in usable]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._member(name, clusters, read)) for name in usable]
        answers = [(name, task.result()) for name, task in zip(usable, tasks, strict=True)]
        failed = [(name, answer) for name, answer in answers if isinstance(answer, errors.CliError)]
        unseen.extend(f"cluster {name}: {error}" for name, error in failed)
        for _, error in failed:
            if isinstance(error, errors.CliUsageError):
                raise error
            if len(failed) == len(answers):
                raise type(error)(f"No member of the hub can be read. Not visible: {' '.join(unseen)}")
        found = [(name, answer) for name, answer in answers if not isinstance(answer, errors.CliError)]
        held = await read(HeldJobs(self._server, self._clock, self._namespace, clusters))
        return Readings([*found, (HUB, held)], unseen)

    async def _member(
        self, name: str, clusters: Resource, read: Callable[[ReadableBackend], Awaitable[T]]
    ) -> T | errors.CliError:
        """Reads one member; returns the error if that fails."""
        clock = ClusterClock(Clock())
        server = self._server.beneath(f"/apis/{clusters.api_version}/clusters/{name}/proxy", clock.observe)
        try:
            async with self._turns, asyncio.timeout(_MEMBER_SECONDS):
                return await read(ClusterBackend(server, clock, self._namespace))
        except TimeoutError:
            return errors.UnreachableError(f"It has not answered within {_MEMBER_SECONDS:g} s.")
        except errors.CliError as error:
            return error


async def _clusters_of(server: ApiServer) -> Resource:
    """Finds the resource of a hub's clusters: that of Karmada, or of a fork that has the same one in another group.

    Raises:
        CliError: There is none, or the hub does not answer.
    """
    groups = (await _asked(server, "/apis", _ServedGroups)).groups
    for group in sorted(groups, key=lambda group: group.name != _USUAL):
        version = group.preferred_version.version
        # Both become a part of a URL.
        if not _GROUP.fullmatch(group.name) or not _VERSION.fullmatch(version):
            continue
        served = await _asked(server, f"/apis/{group.name}/{version}", _ServedResources)
        if {"clusters", "clusters/proxy"} <= {each.name for each in served.resources}:
            return Resource(group=group.name, version=version, kind="Cluster", plural="clusters", namespaced=False)
    raise errors.CliUsageError(_NO_HUB)


async def _asked(server: ApiServer, path: str, kind: type[T]) -> T:
    """Reads a document of the API server's discovery."""
    answer = await _told(server.request(Call(method="GET", path=path)), "the APIs of the hub")
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise errors.AnswerNotUnderstoodError(f"{path} of the hub is not understood: {error}.") from error


async def _told(asked: Awaitable[R], what: str) -> R:
    """Waits for an answer of the hub, and translates the error."""
    try:
        return await asked
    except api.RefusedError as error:
        raise errors.DeniedError(f"You may not list {what}: {error}.") from error
    except api.ApiError as error:
        raise errors.UnreachableError(f"The hub does not answer: {error}.") from error
