"""The backend for a cluster: reads its custom resources and requests drills by Events, with the user's permissions."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import msgspec

from job_supervisor.cli import cluster_history
from job_supervisor.cli.backend import Subject
from job_supervisor.cli.cluster_requests import ask_job, drain_node, undrain_node
from job_supervisor.cli.errors import (
    CliError,
    DeniedError,
    NotNowError,
    NotUnderstoodError,
    SettingError,
    UnknownError,
    UnreachableError,
    UsageError,
)
from job_supervisor.cli.history import Past
from job_supervisor.cli.resource_status import Placements, status_of
from job_supervisor.cli.status import Status
from servicekit.bounds import one_line
from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.errors import (
    ApiError,
    ApiUnavailableError,
    ConfigurationError,
    MissingConfigurationError,
    NotFoundError,
    RefusedError,
    UnreadableError,
)
from servicekit.kubernetes.objects import Metadata, Object, ObjectKey, UnreadObject
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import NODES, PODS, pod_or_outline
from supervisor.domain.ids import JobName, kind_of, namespace
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import EVENT_REASON, LEAD_ANNOTATION, NoticeState, ReclaimNotice, SubjectKind, explained
from supervisor.store.codec import JOBS, NOTICES, StoredRecord, read_job, read_notice

_EVENTS = Resource(group="events.k8s.io", version="v1", kind="Event", plural="events", namespaced=True)
_CORE_EVENTS = Resource(group="", version="v1", kind="Event", plural="events", namespaced=True)
_CORE_NAMES = {"regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent"}
"""Both APIs store the same objects. Supervisors may create the new ones, users of a namespace often the core ones."""

_NODE_EVENTS_NAMESPACE = "default"
"""The API server accepts Events about nodes only there."""

_CALL_SECONDS = 10.0
_ACCEPT_SECONDS = 15.0
"""A leader accepts a drill or a request in well under a second, a new leader in some seconds."""
_POLL_SECONDS = 0.25

_HINT = "Name a supervisor with --address or --data-dir, or a cluster with --kubeconfig or KUBECONFIG."

_STREAMS = (
    "which agents and processes are connected. Only the leading supervisor knows that; ask it with --address and "
    "--token-file."
)


T = TypeVar("T", bound=Object)


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A whole object, also with the parts that nobody here knows."""

    metadata: Metadata
    document: object


def _whole(data: bytes | msgspec.Raw) -> _Manifest:
    return _Manifest(msgspec.json.decode(data, type=_Object).metadata, msgspec.json.decode(data))


class ClusterBackend:
    """Create it with `open`. It sees one namespace, or all namespaces if `namespace` is empty."""

    def __init__(self, server: ApiServer, clock: ClusterClock, namespace: str) -> None:
        self._server = server
        self._namespace = namespace
        self._clock = clock
        self._chosen = chosen = Selection(namespace=namespace)
        self._jobs = ResourceClient(server, JOBS, read_job, chosen)
        # By the version that the CRDs of earlier supervisors have as well.
        self._notices = ResourceClient(server, NOTICES.of_status, read_notice)
        self._pods = ResourceClient(server, PODS, lambda data: pod_or_outline(data, frozenset()), chosen)
        self._nodes = ResourceClient(server, NODES, lambda data: msgspec.json.decode(data, type=_Object))
        self._events, self._core_events = (
            ResourceClient(server, kind, lambda data: msgspec.json.decode(data, type=_Object))
            for kind in (_EVENTS, _CORE_EVENTS)
        )

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: str | None, context: str | None, namespace: str) -> AsyncIterator[Self]:
        """Connects by that kubeconfig and context, as this pod, or by `~/.kube/config`.

        Raises:
            UsageError: None of them exists.
            SettingError: The kubeconfig is not usable.
        """
        clock = ClusterClock(Clock())
        try:
            server = await ApiServer.connect(kubeconfig, _CALL_SECONDS, context, on_date=clock.observe)
        except MissingConfigurationError as error:
            raise UsageError(f"There is {error}. {_HINT}") from error
        except ConfigurationError as error:
            raise SettingError(f"There is {error}. {_HINT}") from error
        try:
            yield cls(server, clock, namespace)
        finally:
            await server.close()

    async def status(self) -> Status:
        """See `Backend`."""
        try:
            jobs = await self._jobs.list()
        except ApiError as error:
            raise self._cli_error(error, "SupervisedJobs") from error
        unseen = [_STREAMS, *_unread("SupervisedJob", jobs.unread)]
        noticed, placements = await self._noticed(unseen), await self._placements(unseen)
        return status_of(jobs.objects, noticed, placements, self._clock.now(), unseen)

    async def manifest(self, resource: Resource, namespace: str, name: str) -> object | None:
        """See `Backend`."""
        where = ObjectKey(namespace or self._namespace or self._server.namespace, name)
        client = ResourceClient(self._server, resource, _whole)
        try:
            return (await client.get(where)).document
        except NotFoundError as error:
            raise UnknownError(f"There is no {resource.kind} {name} in the namespace {where.namespace}.") from error
        except ApiError as error:
            raise self._cli_error(error, f"{resource.kind}s", "get") from error

    async def labelled(self, selector: str) -> Container[JobName]:
        """See `Backend`."""
        try:
            return await cluster_history.labelled(self._server, self._namespace, selector)
        except ApiError as error:
            raise self._cli_error(error, f"jobs by the labels {selector!r}") from error

    async def past(self, status: Status, job: JobName | None) -> Past:  # noqa: ARG002 - the API server filters no jobs
        """See `Backend`."""
        try:
            return Past(entries=await cluster_history.events(self._server, self._namespace))
        except RefusedError:
            status.unseen.append("decisions before the present ones: you may not list Events.")
            return Past()
        except ApiError as error:
            raise self._cli_error(error, "Events") from error

    async def subject(self, text: str) -> Subject:
        """See `Backend`; a bare name means a node if there is one of that name, else a pod."""
        kind, slash, name = text.partition("/")
        if slash and kind not in set(SubjectKind):
            raise UsageError(f"{text!r} is neither node/NAME nor pod/NAME.")
        if kind == SubjectKind.POD:
            return self._pod_subject(name)
        if slash or await self._has_node(text):
            return Subject(kind=SubjectKind.NODE, name=name if slash else text)
        return self._pod_subject(text)

    async def begin(self, subject: Subject, lead: float, by: str) -> None:
        """See `Backend`."""
        uid = await self._ask(subject, lead, by)
        until = time.monotonic() + _ACCEPT_SECONDS
        while time.monotonic() < until:
            if uid in {each.subject.uid for each in await self._drills()}:
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise NotNowError(
            f"The drill was requested, but no supervisor started it within {_ACCEPT_SECONDS:g} s. Does one lead? "
            "The drill may still start; `simulate --end` cancels it."
        )

    async def end(self, subject: Subject | None) -> list[Subject]:
        """See `Backend`."""
        drills = await self._drills()
        found = [Subject(kind=each.subject.kind, name=each.subject.name) for each in drills]
        ended = [each for each in found if subject in (None, each)]
        for one in ended:
            await self._ask(one, 0.0, "")
        return ended

    async def ask(self, job: JobName, kind: RequestKind | None, by: str, reason: str) -> None:
        """See `Backend`."""
        what = kind_of(job)
        try:
            await ask_job(self._server, job, kind, by, reason)
        except ApiError as error:
            raise self._cli_error(error, f"{what}s in the namespace {namespace(job)}", "get and patch") from error
        until = time.monotonic() + _ACCEPT_SECONDS
        while time.monotonic() < until:
            known = next((each.request for each in (await self.status()).jobs if each.job == job), None)
            if kind is (None if known is None else known.kind):
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise NotNowError(
            f"{job} is annotated, but no supervisor has acted on it within {_ACCEPT_SECONDS:g} s. Does one lead? "
            "The next one does."
        )

    async def drain(self, node: Subject, lead: float, by: str, reason: str) -> None:
        """See `Backend`."""
        text = f"{by}: {reason}" if reason else by
        at = datetime.fromtimestamp(self._clock.now() + lead, UTC)
        with self._changing_node(node):
            await drain_node(self._server, node.name, at, text)
        await self._until_drained(node, text)

    async def undrain(self, node: Subject) -> None:
        """See `Backend`."""
        with self._changing_node(node):
            await undrain_node(self._server, node.name)
        await self._until_drained(node, None)

    async def _until_drained(self, node: Subject, message: str | None) -> None:
        """Waits until a supervisor has stored the drain with that message, or its end."""
        until = time.monotonic() + _ACCEPT_SECONDS
        while time.monotonic() < until:
            noticed = await self._active()
            found = [each.message for each in noticed if each.drains and each.subject.name == node.name]
            if found == ([] if message is None else [message]):
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise NotNowError(
            f"Node {node.name} is annotated, but no supervisor has acted on it within {_ACCEPT_SECONDS:g} s. Does one "
            "lead? The next one does."
        )

    @contextmanager
    def _changing_node(self, node: Subject) -> Iterator[None]:
        try:
            yield
        except NotFoundError as error:
            raise UnknownError(f"There is no node {node.name}.") from error
        except ApiError as error:
            raise self._cli_error(error, "nodes", "get and patch") from error

    async def _drills(self) -> list[ReclaimNotice]:
        return [each for each in await self._active() if each.simulated]

    async def _active(self) -> list[ReclaimNotice]:
        try:
            records = (await self._notices.list()).objects
        except ApiError as error:
            raise self._cli_error(error, "ReclaimNotices") from error
        notices = [each.value for each in records if each.value is not None]
        return [each for each in notices if each.state is NoticeState.ACTIVE]

    async def _ask(self, subject: Subject, lead: float, by: str) -> str:
        """Writes the Event; returns the uid of the object that it regards."""
        regarding, namespace = await self._regarding(subject)
        key = ObjectKey(namespace, f"{regarding['name']}.drill-{secrets.token_hex(5)}")
        content = {
            "regarding": regarding,
            "reason": EVENT_REASON,
            "note": explained(by) if lead else "The drill is ended early.",
            "type": "Normal",
            "action": "Simulate",
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": "job-supervisor.kube-ai.io/cli",
            "reportingInstance": "job-supervisor",
        }
        try:
            await self._write(key, content, {LEAD_ANNOTATION: f"{lead:g}"})
        except ApiError as error:
            raise self._cli_error(error, f"Events in the namespace {namespace}", "create") from error
        return regarding["uid"]

    async def _write(self, key: ObjectKey, content: Mapping[str, object], annotations: Mapping[str, str]) -> None:
        try:
            await self._events.create(key, content, annotations=annotations)
        except RefusedError:
            renamed = {_CORE_NAMES.get(name, name): value for name, value in content.items()}
            await self._core_events.create(key, renamed, annotations=annotations)

    async def _regarding(self, subject: Subject) -> tuple[dict[str, str], str]:
        """The object that the Event regards, and the namespace of the Event."""
        if subject.kind is SubjectKind.NODE:
            node = await self._one(self._nodes, ObjectKey("", subject.name), "node")
            regarding = {"apiVersion": "v1", "kind": "Node", "name": subject.name, "uid": node.metadata.uid}
            return regarding, _NODE_EVENTS_NAMESPACE
        namespace, _, name = subject.name.partition("/")
        pod = await self._one(self._pods, ObjectKey(namespace, name), "pod")
        if not pod.opted_in:
            raise UsageError(f"The pod {subject.name} is not opted in: the supervisor would ignore the drill.")
        if pod.deleted_at is not None:
            raise UsageError(f"The pod {subject.name} is being deleted.")
        uid = pod.metadata.uid
        return {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid}, namespace

    async def _one(self, collection: ResourceClient[Any], key: ObjectKey, what: str) -> Any:
        try:
            found = await _get_or_list(collection, key)
        except ApiError as error:
            raise self._cli_error(error, f"{what}s", "get") from error
        if found is None:
            where = f" in the namespace {key.namespace}" if key.namespace else ""
            raise UnknownError(f"There is no {what} {key.name}{where}.")
        return found

    async def _has_node(self, name: str) -> bool:
        try:
            return await _get_or_list(self._nodes, ObjectKey("", name)) is not None
        except RefusedError:  # A user who may not see nodes means a pod.
            return False
        except ApiError as error:
            raise self._cli_error(error, "nodes", "get") from error

    def _pod_subject(self, name: str) -> Subject:
        namespace, slash, bare = name.partition("/")
        if slash:
            return Subject(kind=SubjectKind.POD, name=f"{namespace}/{bare}")
        return Subject(kind=SubjectKind.POD, name=f"{self._namespace or self._server.namespace}/{name}")

    async def _noticed(self, unseen: list[str]) -> list[StoredRecord[ReclaimNotice]]:
        """Empty for a user whose permissions are limited to a namespace: notices are cluster-scoped."""
        try:
            listed = await self._notices.list()
        except RefusedError:
            unseen.append("notices: you may not list ReclaimNotices.")
            return []
        except ApiError as error:
            raise self._cli_error(error, "ReclaimNotices") from error
        unseen.extend(_unread("ReclaimNotice", listed.unread))
        return listed.objects

    async def _placements(self, unseen: list[str]) -> Placements:
        # Imported here: the kinds' code is not needed for anything else, and takes half a second to load.
        from job_supervisor.cli.cluster_placements import placements_by_job  # noqa: PLC0415

        try:
            return await placements_by_job(self._server, self._chosen)
        except ApiError:
            unseen.append("which nodes the pods of jobs are on: you may not list pods.")
            return {}

    def _cli_error(self, error: ApiError, what: str, verb: str = "list") -> CliError:
        match error:
            case NotFoundError():
                return UnreachableError(
                    f"This cluster has no {what}. Is the supervisor installed there, and is this the right cluster?"
                )
            case RefusedError():
                elsewhere = "" if self._namespace or verb != "list" else " Or use --namespace to ask for one namespace."
                return DeniedError(f"You may not {verb} {what}: {error}.{elsewhere}")
            case UnreadableError():
                return NotUnderstoodError(f"{error}: its version may differ from this command's.")
            case ApiUnavailableError():
                return UnreachableError(f"The API server does not answer: {error}.")
            case _:
                return NotNowError(f"{error}. Try again.")


async def _get_or_list(collection: ResourceClient[T], key: ObjectKey) -> T | None:
    """Gets one object, or finds it in the list if only `list` is permitted, as for supervisors and nodes.

    Raises:
        ApiError: Neither is permitted, or the API server does not answer.
    """
    try:
        return await collection.get(key)
    except NotFoundError:
        return None
    except RefusedError as error:
        try:
            listed = await collection.list()
        except RefusedError:
            raise error from None
    if unread := next((each for each in listed.unread if each.metadata.key == key), None):
        raise UnreadableError(f"{key.name} does not decode: {unread.reason}")
    return next((each for each in listed.objects if each.metadata.key == key), None)


def _unread(kind: str, outlines: Iterable[UnreadObject]) -> Iterator[str]:
    """Names the objects that do not decode."""
    for each in outlines:
        name = "/".join(filter(None, each.metadata.key))
        yield f"{kind} {name}: it does not decode ({one_line(each.reason)})."
