"""The backend for a cluster: reads its custom resources, and writes Events and annotations as the user."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec

from job_supervisor.cli import errors
from job_supervisor.cli.backend import STREAMS_UNSEEN, DrillSubject, Past, PastQuery, SeenStatus
from job_supervisor.cli.cluster_status import (
    Placements,
    labelled,
    named_object,
    past_events,
    placements_by_job,
    status_of,
)
from servicekit.bounds import one_line
from servicekit.clock import Clock
from servicekit.kubernetes import errors as api
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.clock import ClusterClock
from servicekit.kubernetes.objects import Metadata, Object, ObjectKey, UnreadObject
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import NODES, PODS, pod_or_outline
from supervisor.cluster.requests import NODE_EVENTS_NAMESPACE, ClusterRequests, DrillObject
from supervisor.domain.asking import signed
from supervisor.domain.ids import JobName, kind_of, namespace
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.observability.views import CapacityView, LedgerView, PoolCapacityView
from supervisor.store.codec import JOBS, NOTICES, StoredRecord, read_job, read_notice

_CALL_SECONDS = 10.0
_ACCEPT_SECONDS = 15.0
"""A leader accepts a drill or a request in well under a second, a new leader in some seconds."""
_POLL_SECONDS = 0.25

_HINT = "Name a supervisor with --address or --data-dir, or a cluster with --kubeconfig or KUBECONFIG."

T = TypeVar("T", bound=Object)


_REPORTER = "job-supervisor.kube-ai.io/cli"


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A whole object, including the fields that this command does not know."""

    metadata: Metadata
    document: object


@asynccontextmanager
async def connected(kubeconfig: str | None, context: str | None) -> AsyncIterator[tuple[ApiServer, ClusterClock]]:
    """Connects by that kubeconfig and context, as this pod, or by `~/.kube/config`.

    Raises:
        CliUsageError: None of them exists.
        CliSettingError: The kubeconfig is not usable.
    """
    clock = ClusterClock(Clock())
    try:
        server = await ApiServer.connect(kubeconfig, _CALL_SECONDS, context, on_date=clock.observe)
    except api.MissingConfigurationError as error:
        raise errors.CliUsageError(f"There is {error}. {_HINT}") from error
    except api.ConfigurationError as error:
        raise errors.CliSettingError(f"There is {error}. {_HINT}") from error
    try:
        yield server, clock
    finally:
        await server.close()


class ClusterBackend:
    """Implements `Backend`; made with `open`. It sees one namespace, or all namespaces if `namespace` is empty."""

    def __init__(self, server: ApiServer, clock: ClusterClock, namespace: str) -> None:
        self._server = server
        self._namespace = namespace
        self._clock = clock
        self._chosen = chosen = Selection(namespace=namespace)
        self._jobs = ResourceClient(server, JOBS, read_job, chosen)
        # By the version that the CRDs of earlier supervisors have as well.
        self._notices = ResourceClient(server, NOTICES.of_status, read_notice)
        self._pods = ResourceClient(server, PODS, lambda data: pod_or_outline(data, frozenset()), chosen)
        self._nodes = ResourceClient(server, NODES, named_object)
        self._requests = ClusterRequests(server, clock.now, _REPORTER)

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: str | None, context: str | None, namespace: str) -> AsyncIterator[Self]:
        """Connects as `connected` does, and raises its errors."""
        async with connected(kubeconfig, context) as (server, clock):
            yield cls(server, clock, namespace)

    async def status(self) -> SeenStatus:
        try:
            jobs = await self._jobs.list()
        except api.ApiError as error:
            raise self._cli_error(error, "SupervisedJobs") from error
        unseen = [STREAMS_UNSEEN, *_unread("SupervisedJob", jobs.unread)]
        noticed: list[StoredRecord[ReclaimNotice]] = []
        try:
            notices = await self._notices.list()
            unseen.extend(_unread("ReclaimNotice", notices.unread))
            noticed = notices.objects
        except api.RefusedError:  # Notices are cluster-scoped, and the user's permissions may be those of a namespace.
            unseen.append("notices: you may not list ReclaimNotices.")
        except api.ApiError as error:
            raise self._cli_error(error, "ReclaimNotices") from error
        placements: Placements = {}
        try:
            placements = await placements_by_job(self._server, self._chosen)
        except api.ApiError:
            unseen.append("which nodes the pods of jobs are on: you may not list pods.")
        seen = status_of(jobs.objects, noticed, placements, self._clock.now(), unseen)
        return msgspec.structs.replace(seen, namespace=self._namespace)

    async def manifest(self, resource: Resource, namespace: str, name: str) -> object | None:
        where = ObjectKey(namespace or self._namespace or self._server.namespace, name)
        client = ResourceClient(
            self._server, resource, lambda data: _Manifest(named_object(data).metadata, msgspec.json.decode(data))
        )
        try:
            return (await client.get(where)).document
        except api.NotFoundError as error:
            raise errors.UnknownError(
                f"There is no {resource.kind} {name} in the namespace {where.namespace}."
            ) from error
        except api.ApiError as error:
            raise self._cli_error(error, f"{resource.kind}s", "get") from error

    async def labelled(self, selector: str) -> Container[JobName]:
        try:
            return await labelled(self._server, self._namespace, selector)
        except api.ApiError as error:
            raise self._cli_error(error, f"jobs by the labels {selector!r}") from error

    async def past(self, status: SeenStatus, wanted: PastQuery) -> Past:
        if wanted.pool is not None:
            status.unseen.append("capacity pools: only the record of a supervisor has them; ask it with --address.")
        try:
            return Past(entries=await past_events(self._server, self._namespace))
        except api.RefusedError:
            status.unseen.append("decisions before the present ones: you may not list Events.")
            return Past()
        except api.ApiError as error:
            raise self._cli_error(error, "Events") from error

    async def ledger(self, since: float, until: float | None, *, by_pool: bool = False) -> LedgerView:  # noqa: ARG002 - no object of a cluster has it
        """Raises UnknownError, because only the leading supervisor keeps the ledger."""
        raise errors.UnknownError(
            "The ledger is in the record of the leading supervisor, not in objects of the cluster: ask it with "
            "--address, --token-file and --ca-file."
        )

    async def capacity(self, job: JobName, since: float, until: float | None) -> CapacityView | None:  # noqa: ARG002 - as above
        """Returns None, for the same reason."""
        return None

    async def pool_capacity(self, pool: str, since: float, until: float | None) -> PoolCapacityView:  # noqa: ARG002 - as above
        """Raises UnknownError, for the same reason."""
        raise errors.UnknownError(f"No object of the cluster has the hosts of {pool} that were there.")

    async def subject(self, text: str) -> DrillSubject:
        """Resolves a subject. A bare name means a node if there is one of that name, else a pod."""
        kind, slash, name = text.partition("/")
        if slash and kind not in set(SubjectKind):
            raise errors.CliUsageError(f"{text!r} is neither node/NAME nor pod/NAME.")
        if kind != SubjectKind.POD and (slash or await self._has_node(text)):
            return DrillSubject(kind=SubjectKind.NODE, name=name if slash else text)
        pod = name if kind == SubjectKind.POD else text
        qualified = pod if "/" in pod else f"{self._namespace or self._server.namespace}/{pod}"
        return DrillSubject(kind=SubjectKind.POD, name=qualified)

    async def begin(self, subject: DrillSubject, lead: float, by: str) -> None:
        uid = await self._write_event(subject, lead, by)

        async def has_begun() -> bool:
            return uid in {each.subject.uid for each in await self._active() if each.simulated}

        await self._until(
            has_begun,
            f"The drill was requested, but no supervisor started it within {_ACCEPT_SECONDS:g} s. Does one lead? "
            "The drill may still start; `simulate --end` cancels it.",
        )

    async def end(self, subject: DrillSubject | None) -> list[DrillSubject]:
        drills = [each.subject for each in await self._active() if each.simulated]
        found = [DrillSubject(kind=each.kind, name=each.name) for each in drills]
        ended = [each for each in found if subject in (None, each)]
        for one in ended:
            await self._write_event(one, 0.0, "")
        return ended

    async def ask(self, job: JobName, kind: RequestKind | None, by: str, reason: str) -> None:
        """Annotates the object of the job. None removes every request."""
        # Imported here: the kinds' code is not needed for anything else.
        from supervisor.jobs.registry import RESOURCES  # noqa: PLC0415

        resource = RESOURCES.get(kind_of(job))
        if resource is None:
            raise errors.CliUsageError(
                f"{job} was started by kubeai-run: ask the supervisor itself, with --address and --token-file."
            )
        try:
            await self._requests.steer(resource, job, kind, f"{by}: {reason}")
        except api.ApiError as error:
            what = f"{kind_of(job)}s in the namespace {namespace(job)}"
            raise self._cli_error(error, what, "get and patch") from error

        async def is_known() -> bool:
            known = next((each.request for each in (await self.status()).jobs if each.job == job), None)
            return kind is (None if known is None else known.kind)

        await self._until(
            is_known,
            f"{job} is annotated, but no supervisor has acted on it within {_ACCEPT_SECONDS:g} s. Does one lead? "
            "The next one does.",
        )

    async def drain(self, node: DrillSubject, lead: float, by: str, reason: str) -> None:
        """Annotates and cordons the node."""
        text = signed(by, reason)
        with self._changing(node):
            await self._requests.drain(node.name, lead, text)
        await self._until_drained(node, text)

    async def undrain(self, node: DrillSubject) -> None:
        """Removes the annotations of the drain, and the cordon if the drain set it."""
        with self._changing(node):
            await self._requests.undrain(node.name)
        await self._until_drained(node, None)

    @contextmanager
    def _changing(self, node: DrillSubject) -> Iterator[None]:
        try:
            yield
        except api.NotFoundError as error:
            raise errors.UnknownError(f"There is no node {node.name}.") from error
        except api.ApiError as error:
            raise self._cli_error(error, "nodes", "get and patch") from error

    async def _until_drained(self, node: DrillSubject, message: str | None) -> None:
        """Waits until a supervisor has stored the drain with that message, or the end of the drain."""

        async def is_stored() -> bool:
            noticed = await self._active()
            found = [each.message for each in noticed if each.drains and each.subject.name == node.name]
            return found == ([] if message is None else [message])

        await self._until(
            is_stored,
            f"Node {node.name} is annotated, but no supervisor has acted on it within {_ACCEPT_SECONDS:g} s. Does one "
            "lead? The next one does.",
        )

    async def _until(self, accepted: Callable[[], Awaitable[bool]], complaint: str) -> None:
        until = time.monotonic() + _ACCEPT_SECONDS
        while time.monotonic() < until:
            if await accepted():
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise errors.NotNowError(complaint)

    async def _active(self) -> list[ReclaimNotice]:
        try:
            records = (await self._notices.list()).objects
        except api.ApiError as error:
            raise self._cli_error(error, "ReclaimNotices") from error
        notices = [each.value for each in records if each.value is not None]
        return [each for each in notices if each.state is NoticeState.ACTIVE]

    async def _write_event(self, subject: DrillSubject, lead: float, by: str) -> str:
        """Writes the Event that starts a drill, or ends it if the lead is 0; returns the uid of the Event's object."""
        if subject.kind is SubjectKind.NODE:
            node = await self._one(self._nodes, ObjectKey("", subject.name), "node")
            target = DrillObject(kind="Node", name=subject.name, uid=node.metadata.uid)
        else:
            space, _, name = subject.name.partition("/")
            pod = await self._one(self._pods, ObjectKey(space, name), "pod")
            if not pod.opted_in:
                raise errors.CliUsageError(
                    f"The pod {subject.name} is not opted in: the supervisor would ignore the drill."
                )
            if pod.deleted_at is not None:
                raise errors.CliUsageError(f"The pod {subject.name} is being deleted.")
            target = DrillObject(kind="Pod", name=name, uid=pod.metadata.uid, namespace=space)
        try:
            await self._requests.drill(target, lead, by)
        except api.ApiError as error:
            space = target.namespace or NODE_EVENTS_NAMESPACE
            raise self._cli_error(error, f"Events in the namespace {space}", "create") from error
        return target.uid

    async def _one(self, collection: ResourceClient[Any], key: ObjectKey, what: str) -> Any:
        try:
            found = await _get_or_list(collection, key)
        except api.ApiError as error:
            raise self._cli_error(error, f"{what}s", "get") from error
        if found is None:
            where = f" in the namespace {key.namespace}" if key.namespace else ""
            raise errors.UnknownError(f"There is no {what} {key.name}{where}.")
        return found

    async def _has_node(self, name: str) -> bool:
        try:
            return await _get_or_list(self._nodes, ObjectKey("", name)) is not None
        except api.RefusedError:  # A user who may not see nodes means a pod.
            return False
        except api.ApiError as error:
            raise self._cli_error(error, "nodes", "get") from error

    def _cli_error(self, error: api.ApiError, what: str, verb: str = "list") -> errors.CliError:
        match error:
            case api.NotFoundError():
                return errors.UnreachableError(
                    f"This cluster has no {what}. Is the supervisor installed there, and is this the right cluster?"
                )
            case api.RefusedError():
                elsewhere = "" if self._namespace or verb != "list" else " Or use --namespace to ask for one namespace."
                return errors.DeniedError(f"You may not {verb} {what}: {error}.{elsewhere}")
            case api.UnreadableError():
                return errors.AnswerNotUnderstoodError(f"{error}: its version may differ from this command's.")
            case api.ApiUnavailableError():
                return errors.UnreachableError(f"The API server does not answer: {error}.")
            case _:
                return errors.NotNowError(f"{error}. Try again.")


async def _get_or_list(collection: ResourceClient[T], key: ObjectKey) -> T | None:
    """Gets one object, or finds it in the list if the user may only `list`, as with supervisors and nodes.

    Raises:
        ApiError: Neither is permitted, or the API server does not answer.
    """
    try:
        return await collection.get(key)
    except api.NotFoundError:
        return None
    except api.RefusedError as error:
        try:
            listed = await collection.list()
        except api.RefusedError:
            raise error from None
    if unread := next((each for each in listed.unread if each.metadata.key == key), None):
        raise api.UnreadableError(f"{key.name} does not decode: {unread.reason}")
    return next((each for each in listed.objects if each.metadata.key == key), None)


def _unread(kind: str, outlines: Iterable[UnreadObject]) -> Iterator[str]:
    """Names the objects that cannot be decoded."""
    for each in outlines:
        name = "/".join(filter(None, each.metadata.key))
        yield f"{kind} {name}: it does not decode ({one_line(each.reason)})."
