"""Foretells what a notice about a node or pod will do to each job there, by the rules of the supervisor. Pure.

A supervisor that is older than this command, and the rights of the user, can hide what a rule depends on. A sentence
then says what is not known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from job_supervisor.cli.backend import STREAMS_UNSEEN, DrillSubject, SeenStatus
from supervisor.domain.ids import STANDALONE, Host, kind_of
from supervisor.domain.job import OnLoss, RequestKind
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import HostView, JobView

_RESUMES = "and resumes as a new run when there is capacity"
_NOTHING = "a notice there changes nothing for it"


def consequences(subject: DrillSubject, status: SeenStatus, until: str = "the drill is over") -> list[str]:
    """Returns in sentences what a notice about the subject will do `until` its end.

    The user reads them before confirming.
    """
    jobs = status.concerned(subject.kind, subject.name)
    sentences = [Foretelling(job, status.hosts_on(job, subject.kind, subject.name), until).sentence for job in jobs]
    limits = list(_limits(subject, status))
    if not sentences and limits:
        sentences.append(f"No supervised job is seen on {subject.kind} {subject.name}.")
    elif not sentences:
        sentences.append(f"No supervised job is on {subject.kind} {subject.name}: only a notice is created.")
    return [*sentences, *limits]


def _limits(subject: DrillSubject, status: SeenStatus) -> Iterator[str]:
    """Yields in sentences what may become of the subject's jobs without being seen from here."""
    if status.namespace and subject.kind is SubjectKind.NODE:
        yield f"Not visible: jobs outside of the namespace {status.namespace}, which may have hosts there as well."
    yield from (limit for limit in status.limits if STREAMS_UNSEEN not in limit)


@dataclass(frozen=True, slots=True)
class Foretelling:
    """Foretells one job. `affected` are its hosts on the subject, and `until` says when the notice ends.

    Every host with a notice is one that goes, whether the job leaves it out already or not.
    """

    job: JobView
    affected: Sequence[HostView]
    until: str

    @property
    def sentence(self) -> str:
        """Says what a notice will do to the job."""
        return f"{self.job.job} {self._what}."

    @property
    def _what(self) -> str:
        job = self.job
        if job.over or job.result is not None:
            return f"has ended: {_NOTHING}"
        if job.request is not None:
            asked = "suspended" if job.request.kind is RequestKind.SUSPEND else "stopped"
            return f"is {job.phase}, as {job.request.by} has {asked} it: {_NOTHING}"
        match job.phase:
            case "Stopping":
                return f"is stopping already, and will not resume there until {self.until}"
            case "Queued" | "Waiting" | "Suspended":
                return self._at_rest
            case "Running" | "Shrinking" | "Resuming":
                return self._live
        return f"is {job.phase}, which this command does not know: it cannot say what a notice there does"

    @property
    def _at_rest(self) -> str:
        """Says what becomes of a job that waits. A run that its controller or queue starts asks nobody of notices."""
        job = self.job
        if not self._is_standalone and job.phase != "Suspended":
            starter = "queue" if job.phase == "Queued" else "controller"
            return (
                f"is {job.phase}: if its {starter} starts it there before {self.until}, it goes on without these hosts "
                "or stops, as a running job does"
            )
        if any(host.launcher for host in self.affected):
            return f"is {job.phase}, and will not start until {self.until}, because its launcher runs there"
        return f"is {job.phase}, and will not start there until {self.until}"

    @property
    def _live(self) -> str:
        """Says what becomes of a job that has hosts."""
        job = self.job
        if not self._is_standalone and not job.running and job.phase != "Resuming":
            return "has no run at present: whether it stops depends on whether its controller starts another"
        reason = self._reason_to_stop
        if reason is not None and job.running:
            return f"saves a checkpoint, is suspended, {_RESUMES}, because {reason}"
        if reason is not None:
            return f"gives up the run that it is starting, {_RESUMES}, because {reason}"
        if all(host.excluded for host in self.affected):
            return f"leaves out its hosts there already: {_NOTHING}"
        continues = f"continues with {self._usable} of {self._workers} until {self.until}"
        if job.fixed_hosts is None and not self._is_standalone:
            continues += ", unless its run cannot go on without a host: this supervisor is too old to say so"
        return continues

    @property
    def _reason_to_stop(self) -> str | None:
        """Says why the run stops, in the order in which the supervisor looks; None if it goes on."""
        job = self.job
        if any(host.launcher for host in self.affected):
            return "its launcher runs there"
        if any(host.launcher and host.notice is not None for host in job.host_states):
            return "its launcher's host has a notice already"
        if not self._usable:
            return f"{len(self._staying)} of {self._workers} would remain and it needs {self._least}"
        return "its run cannot go on without a host" if job.fixed_hosts else None

    @property
    def _is_standalone(self) -> bool:
        """Whether `kubeai-run` has started the job: nobody but the supervisor starts its runs, on any hosts."""
        return kind_of(self.job.job) == STANDALONE

    @property
    def _noticed(self) -> frozenset[Host]:
        """The hosts that have a notice already."""
        return frozenset(host.host for host in self.job.host_states if host.notice is not None)

    @property
    def _staying(self) -> frozenset[Host]:
        """The workers that remain. A host that the run has lost, or leaves out, is none."""
        job, affected = self.job, {host.host for host in self.affected}
        others = {host.host for host in job.host_states if host.excluded or (job.running and not host.worker)}
        return frozenset(job.workers) - self._noticed - affected - others

    @property
    def _workers(self) -> str:
        """Counts the workers, and those of them that other notices take."""
        workers = set(self.job.workers)
        noticed = self._noticed & workers
        text = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
        if noticed:
            text += f" ({len(noticed)} {'has' if len(noticed) == 1 else 'have'} a notice already)"
        return text

    @property
    def _usable(self) -> int:
        """The number of workers with which the run goes on; 0 if too few stay."""
        job, left = self.job, len(self._staying)
        if left < self._least:
            return 0
        return job.requested_workers if job.on_loss == OnLoss.HOLD else left - left % job.worker_multiple

    @property
    def _least(self) -> int:
        """The fewest workers with which the run goes on."""
        job = self.job
        if job.on_loss == OnLoss.HOLD:
            return job.requested_workers
        return -(-job.min_workers // job.worker_multiple) * job.worker_multiple
