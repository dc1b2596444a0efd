"""Says in words what each job will do about a reclaim that is under way. Pure.

Like reasons, a plan predicts what the rules decide and decides nothing. Most of it is what the job's view says already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from supervisor.decide.grant import usable_workers
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Framework, OnLoss, Phase, Spec
from supervisor.domain.notice import NoticeClass, SubjectKind
from supervisor.observability.views import HostView, JobView, NoticeView


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """What a job will do, as a sentence without capital and full stop, and in how many seconds if that is known."""

    job: JobName
    what: str
    seconds: float | None = None


class ReclaimPlans:
    """Says what one job does about each notice. Its hosts are looked at once, as there may be thousands."""

    def __init__(self, job: JobView) -> None:
        self._job = job
        self._on_node: dict[str, list[HostView]] = {}
        self._noticed: dict[NoticeId, list[HostView]] = {}
        for host in job.host_states:
            self._on_node.setdefault(host.node or "", []).append(host)
            if host.notice is not None:
                self._noticed.setdefault(host.notice, []).append(host)
        self._unnoticed = sum(host.worker and host.notice is None for host in job.host_states)

    def about(self, notice: NoticeView) -> ReclaimPlan:
        """Returns what the job does about a notice of a node or a pod that it uses."""
        is_node = notice.kind is SubjectKind.NODE
        hosts = self._on_node.get(notice.subject, ()) if is_node else self._noticed.get(notice.id, ())
        what, seconds = next(self._plans(notice, hosts))
        return ReclaimPlan(self._job.job, what, seconds)

    def _plans(self, notice: NoticeView, hosts: Sequence[HostView]) -> Iterator[tuple[str, float | None]]:
        """Yields plans in the order in which they count: the first one does."""
        job = self._job
        if job.over:
            yield "nothing to do: it has ended", None
        match job.phase:
            case Phase.SUSPENDED | Phase.QUEUED | Phase.WAITING:
                yield f"nothing to do: it is {job.phase}, and does not start there while the notice stands", None
            case Phase.STOPPING:
                step = "" if job.agreement is None or job.agreement.step is None else f" at step {job.agreement.step}"
                yield f"saves{step} and stops", None
        if not notice.acted_on:
            why = "nobody says when it goes" if notice.notice_class is NoticeClass.HINT else "it is not due yet"
            yield f"nothing to do yet: {why}", None
        if hosts and all(host.excluded for host in hosts):
            yield f"goes on with {_workers(len(job.workers))}, without what goes", None
        if not any(host.worker or host.launcher for host in hosts):
            yield "nothing to do: it does not use it", None
        yield self._leaving(hosts)

    def _leaving(self, hosts: Sequence[HostView]) -> tuple[str, float | None]:
        """What a run does that has to go on without these hosts."""
        job = self._job
        staying = self._unnoticed - sum(host.worker and host.notice is None for host in hosts)
        due = next((each.seconds for each in job.prospects if each.seconds is not None), None)
        if any(host.launcher for host in hosts):
            return "saves and stops, because its launcher is there", due
        if job.fixed_hosts:
            return "saves and stops, because its run cannot go on without a host", due
        left = usable_workers(staying, _spec(job))
        if left:
            return f"shrinks to {_workers(left)}", due
        return f"saves and stops, because {_workers(staying)} would remain of at least {job.min_workers}", due


def _spec(job: JobView) -> Spec:
    """As much of the job's spec as says with how many hosts its run may go on."""
    return Spec(
        framework=Framework(job.framework),
        min_workers=job.min_workers,
        max_workers=job.max_workers,
        requested_workers=job.requested_workers,
        on_loss=OnLoss(job.on_loss),
        worker_multiple=job.worker_multiple,
    )


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
