"""Finds the Kubernetes objects that Events regard."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.objects import PODS, Pod
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName, namespace
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice, SubjectKind
from supervisor.jobs.registry import OwnerOf, job_of, resources
from supervisor.observability.events.event import ObjectReference
from supervisor.store.codec import JOBS, NOTICES, owners
from supervisor.store.kubernetes import KubernetesStore


@dataclass(frozen=True, slots=True)
class ClusterReferenceResolver:
    """Implements `ReferenceResolver` from what the supervisor has cached."""

    store: KubernetesStore
    view: ClusterView
    placements: Callable[[JobName], Mapping[Host, Placement] | None]
    owner_of: OwnerOf
    is_released: Callable[[SupervisedJob], bool]

    def notice(self, notice: ReclaimNotice) -> ObjectReference | None:
        metadata = self.store.notice_object(notice.id)
        return None if metadata is None else _about(NOTICES, metadata)

    def job(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        metadata = self.store.job_object(job.name)
        if metadata is None:
            return ()
        return (_about(JOBS, metadata), *_owning(job, metadata.namespace))

    def released(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        return _owning(job, namespace(job.name)) if self.is_released(job) else ()

    def noticed(self, notice: ReclaimNotice) -> Iterator[ObjectReference]:
        """The pod itself, or the live pods of the node."""
        for pod in self._pods_of(notice):
            if not pod.over and self._is_supervised(pod):
                yield _about(PODS, pod.metadata)

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterator[ObjectReference]:
        """The pods of these hosts; machines in a launcher's list are not pods."""
        placed = self.placements(job.name) or {}
        for host in hosts:
            pod = self.view.pod(placed[host].pod) if host in placed else None
            if pod is not None:
                yield _about(PODS, pod.metadata)

    def _pods_of(self, notice: ReclaimNotice) -> Iterable[Pod]:
        if notice.subject.kind is SubjectKind.NODE:
            return self.view.bound(notice.subject.name).values()
        pod = self.view.pod(notice.subject.uid)
        return () if pod is None else (pod,)

    def _is_supervised(self, pod: Pod) -> bool:
        reference = job_of(pod, self.owner_of)
        job = None if reference is None else self.store.snapshot().jobs.get(reference.name)
        return reference is not None and job is not None and job.uid == reference.uid


def _owning(job: SupervisedJob, namespace: str) -> Sequence[ObjectReference]:
    """The object of the job's kind."""
    return [
        ObjectReference(each["apiVersion"], each["kind"], namespace, each["name"], each["uid"])
        for each in owners(job, resources())
    ]


def _about(kind: Resource, metadata: Metadata) -> ObjectReference:
    return ObjectReference(kind.api_version, kind.kind, metadata.namespace, metadata.name, metadata.uid)
