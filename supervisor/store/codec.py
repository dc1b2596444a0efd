"""Encodes notices and jobs as custom resources, and decodes them.

A resource has names in camelCase, instants in RFC 3339 that are rounded to a microsecond, and no field for None. The
CRDs in charts/elastic-job-supervisor/files/crds/ list the fields.
"""

import hashlib
import re
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from servicekit.bounds import instant_of, nearest_seconds
from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata, ObjectKey
from supervisor.domain.ids import STANDALONE, Host, Instant, JobName, NoticeId, bare_name, cluster_job, kind_of
from supervisor.domain.job import Decision, Observed, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.conditions import ResourceCondition, job_conditions, notice_condition
from supervisor.store.migrations import spec_fields, stored_job

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Fields = dict[str, Any]
"""A JSON object."""

_GROUP = "job-supervisor.kube-ai.io"
_VERSION = "v1alpha1"
# A reclaim of a whole zone is thousands of new notices: each is created together with its status, in one request.
NOTICES = Resource(
    group=_GROUP,
    version="v1alpha2",
    status_version=_VERSION,
    kind="ReclaimNotice",
    plural="reclaimnotices",
    namespaced=False,
)
# Some 200 KB a job of thousands of workers: a page of 500 would be 100 MB.
JOBS = Resource(group=_GROUP, version=_VERSION, kind="SupervisedJob", plural="supervisedjobs", namespaced=True, page=50)

_HASH = "-hash"
_HASHED = STANDALONE + _HASH
"""The prefix for names that no resource can have. A kind has no dot and no hyphen, so no other resource begins so."""

_MAX_NAME = 253
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


class CustomResource(msgspec.Struct, frozen=True):
    """A custom resource as the API server returns it."""

    metadata: Metadata
    spec: Fields
    status: Fields | None = None


@dataclass(frozen=True, slots=True)
class StoredRecord(Generic[T]):
    """A resource and the value in it.

    The value is None while spec and status do not belong together, as it takes two requests to write both. `ours` is
    False if the resource is another supervisor's.
    """

    resource: CustomResource
    value: T | None
    conditions: tuple[ResourceCondition, ...] = ()
    ours: bool = True

    @property
    def metadata(self) -> Metadata:
        return self.resource.metadata

    @property
    def epoch(self) -> int:
        """The epoch of the last leader that wrote to it, 0 if none did."""
        return max(int(part.get("epoch", 0)) for part in (self.resource.spec, self.resource.status or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec(Generic[K, T]):
    """Encodes the values of one kind into resources, and reads them.

    Attributes:
        read: Reads a resource. Raises a `msgspec.MsgspecError` if it does not decode.
        id: Returns the key under which the store knows the value.
        object_key: Returns the key of the resource for a value that has none yet. Where the name has no meaning, it is
            another one if the resource of that name is among the given ones, which do not decode.
        encode: Returns spec and status as the leader of an epoch writes them over a record. Raises a TypeError for a
            value that has no form in JSON.
        rank: Orders the values of one id: the highest is the present one.
        metadata: Returns further metadata of a new resource.
    """

    read: Callable[[bytes | msgspec.Raw], StoredRecord[T]]
    id: Callable[[T], K]
    object_key: Callable[[T, Container[ObjectKey]], ObjectKey]
    encode: Callable[[T, StoredRecord[T] | None, int], tuple[Fields, Fields]]
    rank: Callable[[T], int] = lambda _: 0
    metadata: Callable[[T], Mapping[str, object]] = lambda _: {}


def _notice_object_key(notice: ReclaimNotice, unread: Container[ObjectKey]) -> ObjectKey:
    key = notice_key(notice.id, notice.episode)
    return ObjectKey(key.namespace, f"{key.name}-again") if key in unread else key


def _encode_notice(
    notice: ReclaimNotice, _before: StoredRecord[ReclaimNotice] | None, epoch: int
) -> tuple[Fields, Fields]:
    status = encode(notice)
    spec = {name: status.pop(name) for name in ("source", "subject", "episode")}
    return spec, {"epoch": epoch, **status, "conditions": [encode(notice_condition(notice))]}


def read_notice(data: bytes | msgspec.Raw) -> StoredRecord[ReclaimNotice]:
    """Reads a notice.

    Raises:
        msgspec.MsgspecError: It does not decode.
    """
    resource = msgspec.json.decode(data, type=CustomResource)
    if resource.status is None:
        return StoredRecord(resource, None)
    return StoredRecord(resource, decode(resource.status | resource.spec, ReclaimNotice))


NOTICE_CODEC: Codec[NoticeId, ReclaimNotice] = Codec(
    read=read_notice,
    id=lambda notice: notice.id,
    object_key=_notice_object_key,
    encode=_encode_notice,
    rank=lambda notice: notice.episode,
)
"""Encodes one ReclaimNotice for each episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHosts:
    """All hosts of a job, each once. Three lists that repeated them made a job of 4,000 workers three times as large.

    `missing` hosts are granted to the job, and not in its launcher's list.
    """

    workers: Sequence[Host] = ()
    excluded: Sequence[Host] = ()
    waiting: Sequence[Host] = ()
    missing: Sequence[Host] = ()
    missing_excluded: Sequence[Host] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredJobIdentity:
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredJobStatus:
    uid: str
    hosts: JobHosts
    observed: Fields
    decision: Fields
    conditions: tuple[ResourceCondition, ...] = ()


def read_job(data: bytes | msgspec.Raw, home: str | None = None) -> StoredRecord[SupervisedJob]:
    """Reads a job of the supervisor whose namespace is `home`, or of any supervisor.

    Raises:
        msgspec.MsgspecError: It does not decode.
    """
    resource = msgspec.json.decode(data, type=CustomResource)
    key, spec = resource.metadata.key, decode(resource.spec, _StoredJobIdentity)
    name = job_name(key, spec.name, key.namespace if home is None else home)
    if name is None or resource.status is None:
        return StoredRecord(resource, None, ours=name is not None)
    status = decode(resource.status, _StoredJobStatus)
    if status.uid != spec.uid:
        return StoredRecord(resource, None)
    hosts, observed = status.hosts, status.observed
    if observed.get("result") is not None and observed.get("ended_at") is None:
        # An earlier version has stored no end, but when its phase became a final one.
        finished = (each for each in status.conditions if (each.type, each.status) == ("Finished", "True"))
        observed["ended_at"] = next((each.last_transition_time for each in finished), None)
    listed = frozenset().union(hosts.workers, hosts.excluded, hosts.waiting)
    excluded = frozenset().union(hosts.excluded, hosts.missing_excluded)
    granted = excluded.union(hosts.workers, hosts.missing)
    value = stored_job(
        name,
        spec.uid,
        decode(resource.spec, Fields),
        msgspec.convert({**observed, "hosts": listed}, Observed),
        msgspec.convert({**status.decision, "hosts": granted, "exclusions": excluded}, Decision),
    )
    return StoredRecord(resource, value, status.conditions)


def job_codec(home: str, now: Callable[[], float], kinds: Mapping[str, Resource]) -> Codec[JobName, SupervisedJob]:
    """Encodes one SupervisedJob for each job.

    Args:
        home: The namespace of stand-alone jobs.
        now: Unix seconds.
        kinds: The API resources of the other jobs, by the lower-case kind: a job's object owns its resource.
    """

    def metadata(job: SupervisedJob) -> Mapping[str, object]:
        found = owners(job, kinds)
        return {"ownerReferences": found} if found else {}

    def encode_job(job: SupervisedJob, before: StoredRecord[SupervisedJob] | None, epoch: int) -> tuple[Fields, Fields]:
        spec = {"epoch": epoch, "name": bare_name(job.name), "uid": job.uid, **encode(spec_fields(job.spec))}
        observed, decision = encode(job.observed), encode(job.decision)
        del observed["hosts"], decision["hosts"], decision["exclusions"]
        listed, granted, excluded = job.observed.hosts, job.decision.hosts, job.decision.exclusions
        used = granted - excluded
        hosts = JobHosts(
            workers=sorted(used & listed),
            excluded=sorted(excluded & listed),
            waiting=sorted(listed - granted),
            missing=sorted(used - listed),
            missing_excluded=sorted(excluded - listed),
        )
        # A job that was deleted and created again begins with new transition times.
        known = before.conditions if before and before.value and before.value.uid == job.uid else ()
        return spec, {
            "epoch": epoch,
            "uid": job.uid,
            "workers": len(used),
            "excluded": len(excluded),
            "hosts": encode(hosts),
            "observed": observed,
            "decision": decision,
            "conditions": [encode(each) for each in job_conditions(job, known, now())],
        }

    return Codec(
        read=partial(read_job, home=home),
        id=lambda job: job.name,
        object_key=lambda job, _unread: job_key(job.name, home),
        encode=encode_job,
        metadata=metadata,
    )


def notice_key(key: NoticeId, episode: int) -> ObjectKey:
    """Returns the key of an episode's resource: a hash, because sources and uids may have any characters."""
    return ObjectKey("", "n-" + _hash(f"{key}/{episode}"))


def job_key(name: JobName, home: str) -> ObjectKey:
    """Returns the key of a job's resource, in the job's namespace, or in `home` if it was registered stand-alone."""
    namespace, slash, resource = name.partition("/")
    if slash and len(resource) <= _MAX_NAME:
        return ObjectKey(namespace, resource)
    if slash:
        # The job's own name leaves no room for its kind: a beginning to read, and a hash.
        kind, _, bare = resource.partition(".")
        ending = f"-{_hash(name)}"
        return ObjectKey(namespace, f"{kind}{_HASH}.{bare}"[: _MAX_NAME - len(ending)].rstrip("-.") + ending)
    resource = f"{STANDALONE}.{name}"
    if len(resource) <= _MAX_NAME and _RESOURCE_NAME.fullmatch(resource):
        return ObjectKey(home, resource)
    return ObjectKey(home, f"{_HASHED}.{_hash(name)}")


def job_name(key: ObjectKey, name: str, home: str) -> JobName | None:
    """Returns the job in a resource whose spec has `name`; None for another supervisor's stand-alone job."""
    kind, _, _ = key.name.partition(".")
    if kind not in (STANDALONE, _HASHED):
        if not kind.endswith(_HASH):
            return JobName(f"{key.namespace}/{key.name}")
        found = cluster_job(key.namespace, kind.removesuffix(_HASH), name)
        return found if key == job_key(found, home) else None
    return JobName(name) if key == job_key(JobName(name), home) else None


def owners(job: SupervisedJob, kinds: Mapping[str, Resource]) -> list[Mapping[str, str]]:
    """Returns the owner of the job's resource: the cluster's object of the job, found by the resources of the kinds."""
    kind = kinds.get(kind_of(job.name))
    if kind is None:
        return []
    return [{"apiVersion": kind.api_version, "kind": kind.kind, "name": bare_name(job.name), "uid": job.uid}]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _instants(hint: Any) -> Iterator[str]:
    """Yields the names of the fields that are instants, in a dataclass and in everything that it may contain."""
    if is_dataclass(hint):
        for name, field in get_type_hints(hint, include_extras=True).items():
            if Instant in (field, *get_args(field)):
                yield name
            yield from _instants(field)
    for part in get_args(hint):
        yield from _instants(part)


_INSTANTS = {name for kind in (ReclaimNotice, Observed, Decision, ResourceCondition) for name in _instants(kind)}


def encode(value: object) -> Fields:
    """Returns the fields of a dataclass.

    Raises:
        TypeError: One of them has no form in JSON.
    """
    fields: Fields = _encoded(msgspec.to_builtins(value))
    return fields


def decode(fields: Fields, kind: type[T]) -> T:
    """Reads a dataclass and ignores fields that it does not have.

    Raises:
        msgspec.ValidationError: A field is missing or holds something else.
    """
    return msgspec.convert(_decoded(fields), kind)


def _encoded(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {_camel_case(key): _encoded(each, key) for key, each in value.items() if each is not None}
        case [dict(), *_]:
            return [_encoded(each) for each in value]
        case tuple():  # JSON has only lists, and what is written is compared with what is read.
            return list(value)
        case float() | int() if name in _INSTANTS:
            return msgspec.to_builtins(instant_of(value))
    return value


def _decoded(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {(name := _snake_case(key)): _decoded(each, name) for key, each in value.items()}
        case [dict(), *_]:
            return [_decoded(each) for each in value]
        case str() if name in _INSTANTS:
            return nearest_seconds(msgspec.convert(value, datetime))
    return value


@cache
def _camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


@cache
def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name)
