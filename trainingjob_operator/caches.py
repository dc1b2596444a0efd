"""The caches of TrainingJobs and of what belongs to them, each kind kept in step by a watch."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec

from servicekit.bounds import unix_seconds
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Object, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from trainingjob_operator.api import (
    GROUP,
    GROUP_LABEL,
    JOB_LABEL,
    PODS,
    SCALE_INS,
    SCALE_OUTS,
    SERVICES,
    TRAINING_JOBS,
    Named,
    Pod,
    Scale,
    TrainingJob,
)

R = TypeVar("R", bound=Object)


@dataclass(frozen=True, slots=True)
class Watched(Generic[R]):
    """The client, the cache and the reflector of one kind of object."""

    client: ResourceClient[R]
    cache: Cache[R]
    reflector: Reflector[R]


class JobCaches:
    """The objects of all jobs, by their jobs.

    Pods are found by the uid of the job that controls them, never by a name alone: a name may belong to another job by
    now, or in another namespace.

    Args:
        server: The cluster.
        clock: Monotonic instants.
        bulkhead: Keeps what one object raises from the others.
        namespace: The namespace of the jobs; empty for all.
        on_change: Called with the job that a change concerns.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Clock,
        bulkhead: Bulkhead,
        namespace: str,
        on_change: Callable[[ObjectKey], None],
    ) -> None:
        def watched(
            resource: Resource, shape: type[R], moved: Callable[[R | None, R | None], None], labels: str = ""
        ) -> Watched[R]:
            decode = partial(msgspec.json.decode, type=shape)
            client = ResourceClient(server, resource, decode, Selection(namespace=namespace, labels=labels))
            cache: Cache[R] = Cache(resource.plural, moved, bulkhead)
            return Watched(client, cache, Reflector(client, cache, clock))

        self._on_change = on_change
        self._pods_of: dict[str, dict[ObjectKey, Pod]] = defaultdict(dict)
        self._services_of: dict[ObjectKey, set[str]] = defaultdict(set)
        self._scales_of: dict[ObjectKey, dict[str, Scale]] = defaultdict(dict)
        ours = f"{GROUP_LABEL}={GROUP}"
        self.jobs = watched(TRAINING_JOBS, TrainingJob, self._job_changed)
        self.scale_ins = watched(SCALE_INS, Scale, self._scale_changed)
        self.scale_outs = watched(SCALE_OUTS, Scale, self._scale_changed)
        self.pods = watched(PODS, Pod, self._pod_changed, ours)
        self.services = watched(SERVICES, Named, self._service_changed, ours)

    @property
    def reflectors(self) -> Mapping[str, Reflector[TrainingJob] | Reflector[Scale] | Reflector[Pod] | Reflector[Named]]:
        """The reflectors by the plurals of what they follow."""
        return {
            PODS.plural: self.pods.reflector,
            SERVICES.plural: self.services.reflector,
            TRAINING_JOBS.plural: self.jobs.reflector,
            SCALE_INS.plural: self.scale_ins.reflector,
            SCALE_OUTS.plural: self.scale_outs.reflector,
        }

    def pods_of(self, job: TrainingJob) -> tuple[Pod, ...]:
        """Returns the pods that a job controls."""
        return tuple(self._pods_of.get(job.metadata.uid, {}).values())

    def services_of(self, job: ObjectKey) -> frozenset[str]:
        """Returns the names of the Services of a job."""
        return frozenset(self._services_of.get(job, ()))

    def note_service(self, job: ObjectKey, name: str) -> None:
        """Notes that a Service of that name exists which the watch does not show, as it has no label of ours."""
        self._services_of[job].add(name)

    def scales_of(self, job: ObjectKey) -> tuple[Scale, ...]:
        """Returns the ScaleIns and ScaleOuts that name a job and are not over, the oldest first."""

        def age(scale: Scale) -> tuple[float, str]:
            return unix_seconds(scale.metadata.creation_timestamp) or 0.0, scale.metadata.name

        return tuple(sorted(self._scales_of.get(job, {}).values(), key=age))

    def kind_of(self, scale: Scale) -> Watched[Scale]:
        """Returns whether a scaling is a ScaleIn or a ScaleOut."""
        known = self.scale_ins.cache.objects.get(scale.metadata.key)
        return self.scale_ins if known is not None and known.metadata.uid == scale.metadata.uid else self.scale_outs

    def _job_changed(self, before: TrainingJob | None, after: TrainingJob | None) -> None:
        if (one := after or before) is not None:
            self._on_change(one.metadata.key)

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        for pod in (before, after):
            if pod is None:
                continue
            for owner in pod.metadata.owner_references:
                if not owner.controller:
                    continue
                pods = self._pods_of[owner.uid]
                pods.pop(pod.metadata.key, None)
                if pod is after:
                    pods[pod.metadata.key] = pod
                elif not pods:
                    del self._pods_of[owner.uid]
                self._on_change(ObjectKey(pod.metadata.namespace, owner.name))

    def _service_changed(self, before: Named | None, after: Named | None) -> None:
        for service in (before, after):
            if service is None:
                continue
            meta = service.metadata
            key = ObjectKey(meta.namespace, meta.labels.get(JOB_LABEL, ""))
            self._services_of[key].discard(meta.name)
            if service is after:
                self._services_of[key].add(meta.name)
            elif not self._services_of[key]:
                del self._services_of[key]
            self._on_change(key)

    def _scale_changed(self, before: Scale | None, after: Scale | None) -> None:
        for scale in (before, after):
            if scale is None:
                continue
            key = ObjectKey(scale.metadata.namespace, scale.spec.selector.name)
            self._scales_of[key].pop(scale.metadata.uid, None)
            if scale is after and not scale.over:
                self._scales_of[key][scale.metadata.uid] = scale
            elif not self._scales_of[key]:
                del self._scales_of[key]
            self._on_change(key)
