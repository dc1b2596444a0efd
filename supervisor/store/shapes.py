"""How notices and jobs lie in their resources: which one, what is written to it, and what one that was read means."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from servicekit.kubernetes.objects import Metadata, ObjectKey
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.job_resource import JobResource, JobSpec, JobStatus, job_spec, job_status
from supervisor.store.names import job_key, notice_key, owners
from supervisor.store.notice_resource import NoticeResource, NoticeSpec, NoticeStatus, notice_spec, notice_status

K_co = TypeVar("K_co", bound=Hashable, covariant=True)
T = TypeVar("T")
S = TypeVar("S")
U = TypeVar("U")
Part = TypeVar("Part", JobSpec, JobStatus, NoticeStatus)


@dataclass(frozen=True, slots=True)
class Stored(Generic[T, S, U]):
    """One resource as it was read: its two parts, and the value that they hold.

    The value is None while the parts do not belong together: writing both takes two requests. `ours` is False for what
    another supervisor keeps here.
    """

    metadata: Metadata
    spec: S
    status: U | None
    value: T | None
    ours: bool = True


class Shape(Protocol[K_co, T, S, U]):
    """One kind of value."""

    def id(self, value: T) -> K_co:
        """What it is known by."""

    def rank(self, value: T) -> int:
        """Of several with one id, the highest counts."""

    def key(self, value: T) -> ObjectKey:
        """The resource that holds it."""

    def metadata(self, value: T) -> Mapping[str, object]:
        """What else a new resource's metadata hold."""

    def spec(self, value: T, before: S | None) -> S:
        """What is to stand in its spec; `before` itself where that says the same."""

    def status(self, value: T, before: U | None) -> U:
        """What is to stand in its status; `before` itself where that says the same."""

    def read(self, data: bytes | msgspec.Raw) -> Stored[T, S, U]:
        """Reads one.

        Raises:
            msgspec.MsgspecError: It does not decode.
        """


Epoch = Callable[[], int]
"""The present leader's."""


@dataclass(frozen=True, slots=True)
class NoticeShape:
    """One resource an episode."""

    epoch: Epoch

    def id(self, value: ReclaimNotice) -> NoticeId:
        return value.id

    def rank(self, value: ReclaimNotice) -> int:
        return value.episode

    def key(self, value: ReclaimNotice) -> ObjectKey:
        return notice_key(value.id, value.episode)

    def metadata(self, value: ReclaimNotice) -> Mapping[str, object]:  # noqa: ARG002 - Shape
        return {}

    def spec(self, value: ReclaimNotice, before: NoticeSpec | None) -> NoticeSpec:  # noqa: ARG002 - Shape
        return notice_spec(value)

    def status(self, value: ReclaimNotice, before: NoticeStatus | None) -> NoticeStatus:
        return _unless_same(before, notice_status(value, self.epoch()))

    def read(self, data: bytes | msgspec.Raw) -> Stored[ReclaimNotice, NoticeSpec, NoticeStatus]:
        resource = msgspec.json.decode(data, type=NoticeResource)
        return Stored(resource.metadata, resource.spec, resource.status, resource.value())


@dataclass(frozen=True, slots=True)
class JobShape:
    """One resource a job; `home` is the namespace of stand-alone jobs, `now` reads Unix seconds."""

    epoch: Epoch
    home: str
    now: Callable[[], float]

    def id(self, value: SupervisedJob) -> JobName:
        return value.name

    def rank(self, value: SupervisedJob) -> int:  # noqa: ARG002 - Shape
        return 0

    def key(self, value: SupervisedJob) -> ObjectKey:
        return job_key(value.name, self.home)

    def metadata(self, value: SupervisedJob) -> Mapping[str, object]:
        found = owners(value)
        return {"ownerReferences": found} if found else {}

    def spec(self, value: SupervisedJob, before: JobSpec | None) -> JobSpec:
        return _unless_same(before, job_spec(value, self.epoch()))

    def status(self, value: SupervisedJob, before: JobStatus | None) -> JobStatus:
        conditions = before.conditions if before is not None and before.uid == value.uid else ()
        return _unless_same(before, job_status(value, self.epoch(), conditions, self.now()))

    def read(self, data: bytes | msgspec.Raw) -> Stored[SupervisedJob, JobSpec, JobStatus]:
        resource = msgspec.json.decode(data, type=JobResource)
        ours = resource.name(self.home) is not None
        return Stored(resource.metadata, resource.spec, resource.status, resource.value(self.home), ours)


def _unless_same(before: Part | None, after: Part) -> Part:
    """A leader that has nothing else to write does not write that it leads."""
    same = before is not None and msgspec.structs.replace(before, epoch=after.epoch) == after
    return before if before is not None and same else after
