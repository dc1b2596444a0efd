"""The operator's caches of jobs, pods and scalings, each kind fed by a watch."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Object, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from simulator.et_operator.names import GROUP, GROUP_LABEL
from simulator.et_operator.objects import (
    PODS,
    SCALE_INS,
    SCALE_OUTS,
    TRAINING_JOBS,
    OperatedTrainingJob,
    OperatorPod,
    Scale,
)

R = TypeVar("R", bound=Object)


class WatchedKind(Generic[R]):
    """The client and the cache of one kind of object."""

    def __init__(
        self,
        server: ApiServer,
        kind: Resource,
        shape: type[R],
        on_change: Callable[[R | None, R | None], None],
        selection: Selection,
    ) -> None:
        self.client: ResourceClient[R] = ResourceClient(
            server, kind, lambda data: msgspec.json.decode(data, type=shape), selection
        )
        clock = Clock()
        self.cache: Cache[R] = Cache(kind.plural, on_change, Bulkhead(clock))
        self.reflector = Reflector(self.client, self.cache, clock)


class ObjectCaches:
    """The caches of all kinds.

    Args:
        server: The cluster.
        namespace: The jobs' namespace; empty for all.
        across: Whether a job's pods are found by its name alone, in any namespace.
        on_change: Called with the job that an event concerns.
        on_pod_deleted: Called with a deleted pod.
    """

    def __init__(
        self,
        server: ApiServer,
        on_change: Callable[[ObjectKey], None],
        on_pod_deleted: Callable[[OperatorPod], None],
        *,
        across: bool,
        namespace: str = "",
    ) -> None:
        self._across = across
        self._on_change = on_change
        self._on_pod_deleted = on_pod_deleted
        self._by_job: dict[ObjectKey, dict[ObjectKey, OperatorPod]] = {}
        home = Selection(namespace=namespace)
        # In all namespaces, because a flaw of the operator is to confuse pods of other namespaces with its own.
        pods = Selection(labels=f"{GROUP_LABEL}={GROUP}")
        self.jobs = WatchedKind(server, TRAINING_JOBS, OperatedTrainingJob, self._job_changed, home)
        self.scale_ins = WatchedKind(server, SCALE_INS, Scale, self._scale_changed, home)
        self.scale_outs = WatchedKind(server, SCALE_OUTS, Scale, self._scale_changed, home)
        self.pods = WatchedKind(server, PODS, OperatorPod, self._pod_changed, pods)

    @property
    def reflectors(self) -> tuple[Reflector[OperatedTrainingJob] | Reflector[Scale] | Reflector[OperatorPod], ...]:
        return (
            self.jobs.reflector,
            self.scale_ins.reflector,
            self.scale_outs.reflector,
            self.pods.reflector,
        )

    def pods_of(self, job: ObjectKey) -> Iterable[OperatorPod]:
        return self._by_job.get(self._home(job), {}).values()

    def _home(self, job: ObjectKey) -> ObjectKey:
        return ObjectKey("", job.name) if self._across else job

    def _job_changed(self, before: OperatedTrainingJob | None, after: OperatedTrainingJob | None) -> None:
        if (one := after or before) is not None:
            self._on_change(one.metadata.key)

    def _scale_changed(self, before: Scale | None, after: Scale | None) -> None:
        if (one := after or before) is not None:
            self._on_change(one.job)

    def _pod_changed(self, before: OperatorPod | None, after: OperatorPod | None) -> None:
        for pod in (before, after):
            if pod is not None:
                self._by_job.setdefault(self._home(pod.job), {}).pop(pod.metadata.key, None)
        if after is not None:
            self._by_job[self._home(after.job)][after.metadata.key] = after
        elif before is not None:
            self._on_pod_deleted(before)
        if (one := after or before) is not None:
            for job in self._jobs_of(one):
                self._on_change(job)

    def _jobs_of(self, pod: OperatorPod) -> Iterable[ObjectKey]:
        if not self._across:
            return [pod.job]
        return [job for job in self.jobs.cache.objects if job.name == pod.job.name]
