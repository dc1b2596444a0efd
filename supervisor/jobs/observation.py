"""Derives the stored job from its object and its pods, in the same way for every kind. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from servicekit.bounds import MAX_HOSTS, MAX_ROLES, unix_seconds
from supervisor.cluster.annotations import (
    OURS,
    STATUS,
    STOPPED_BY_REQUEST,
    SUSPENDED_BY,
    TIMEOUT,
    opts_in,
    opts_out,
)
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.decide.plan import first_decision
from supervisor.decide.reasons import waiting
from supervisor.domain.ids import MAX_NAME, Host
from supervisor.domain.job import (
    Capability,
    Decision,
    Framework,
    Observed,
    Phase,
    Result,
    Spec,
    SupervisedJob,
)
from supervisor.jobs.annotated import mistyped_opt_in, requested_workers, with_annotations
from supervisor.jobs.gangs import gang_minimum, with_gang
from supervisor.jobs.kind import CommonJobSpec, J, JobObject, JobState
from supervisor.jobs.marks import read_marks, step_of

STATUS_OF: Mapping[Result, str] = {Result.TIMED_OUT: TIMEOUT, Result.TERMINATED: STOPPED_BY_REQUEST}
"""The marks of jobs that the supervisor has ended; a person may take them up again."""

SUSPENSION: Mapping[str, str] = {SUSPENDED_BY: OURS}
"""The annotation that tells a suspension of the supervisor's from a person's."""

_SUSPENDED_BEFORE = "Was suspended before; waiting for capacity."

TAKEN_BACK = (
    "The job is not supervised: the hub that has created it undid its suspension. "
    "Install the chart job-supervisor-hub at the hub, then remove the job's annotation suspended-by."
)
"""A job whose hub does not know that the suspension is ours is left alone, as each attempt restarts all of its pods."""

_KILLED = -9
"""The exit code of a launcher whose pod was deleted."""

_REFUSED = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS})
"""The controller of a refused job makes its hosts and starts it, so the supervisor has nothing to do for it."""

_NAME_WITH_ROOM = 150
"""A job's name of this length leaves room for a role of 63 characters and two numbers."""

S = TypeVar("S", bound=CommonJobSpec)


class JobObservation(ABC, Generic[J, S]):
    """An observation of a job. Each family of kinds has a subclass for what differs between them.

    Args:
        state: The job and its pods.
        asked: The spec of that job.
        known: The stored job of that name.
        now: Unix seconds.
        framework: The framework that trains.
        own: The annotations of the kind.
    """

    launcher_suffix = ""
    """Follows the job's name in the name of its launcher."""

    launchers_in_gang = 0
    """How many launchers the controller takes into the gang of the job."""

    def __init__(  # noqa: PLR0913 - the last ones are those of the kind
        self,
        state: JobState[J],
        asked: S,
        known: SupervisedJob | None,
        now: float,
        *,
        framework: Framework,
        own: frozenset[str] = frozenset(),
    ) -> None:
        self.state, self.job, self.asked, self.now = state, state.job, asked, now
        # Not that of an earlier one of the same name.
        self.known = known if known is not None and known.uid == state.job.metadata.uid else None
        self.framework = framework
        self._own = own
        self.annotations = [state.job.annotations, *asked.annotations]
        noted = requested_workers(state.job.annotations, asked.replicas)
        # Anybody may write the annotation. A known job has asked for that many before, else somebody else wrote it.
        is_ours = self.known is None or noted <= self.known.spec.requested_workers
        self.requested = noted if is_ours else asked.replicas
        """The number of workers that the job asked for, also if the supervisor has resumed it with fewer."""

    @abstractmethod
    def last_hosts(self) -> Iterable[Host]:
        """Returns the host of each role with the longest name."""

    @abstractmethod
    def spec(self) -> Spec:
        """Returns the spec of the job without the values of its annotations."""

    @abstractmethod
    def observed(self, spec: Spec, before: Observed) -> Observed:
        """Returns the facts about the job; `before` has those of the last observation."""

    @abstractmethod
    def result(self) -> Result | None:
        """Returns how the job ended; None if it has not."""

    @abstractmethod
    def is_freed(self, known: SupervisedJob) -> bool:
        """Returns whether a person has resumed a job that was to stay suspended. Such a job is registered again."""

    def reason_if_suspended(self) -> str:
        """The reason for the phase Suspended of a job that is stored for the first time; empty for another phase."""
        return _SUSPENDED_BEFORE if self.job.suspended else ""

    def supervised(self) -> SupervisedJob | None:
        """Returns the job to be stored. Implements `JobKind.observe`."""
        state, job, asked, known, now = self.state, self.job, self.asked, self.known, self.now
        by_person = job.suspended and state.admission is None and job.annotations.get(SUSPENDED_BY) != OURS
        if asked.replicas < 1 or job.deleted or by_person:
            return None
        is_ours = self._is_ours()
        if is_ours:
            why = TAKEN_BACK if job.taken_back else asked.refusal
            is_long = len(job.metadata.name) > _NAME_WITH_ROOM
            if not why and is_long and any(len(host) > MAX_NAME for host in self.last_hosts()):
                why = f"The job is not supervised: the names of its pods would have more than {MAX_NAME} characters."
        elif not (why := mistyped_opt_in(self.annotations)):
            return None
        if why:
            return self._refused(why)
        if known is not None and (known.spec.refused or self.is_freed(known)):
            return None
        spec = with_annotations(self.spec(), self.annotations, self._own, from_hub=job.from_hub)
        before = None if known is None else known.spec.gang
        spec = with_gang(spec, gang_minimum(state, asked, before, launchers=self.launchers_in_gang))
        marks = read_marks(job)
        if known is not None:
            return replace(known, spec=spec, observed=replace(self.observed(spec, known.observed), hub=marks))
        launcher = f"{job.metadata.name}{self.launcher_suffix}"
        observed = self.observed(spec, Observed(launcher=launcher, instance="", registered_at=now, hub=marks))
        if observed.result is not None:
            return None
        began = unix_seconds(job.waiting_since)
        decision = first_decision(spec, observed, now if began is None else min(now, began))
        if reason := self.reason_if_suspended():
            decision = Decision(generation=1, phase=Phase.SUSPENDED, reason=reason, waiting_since=now)
        decision = _with_checkpoint(decision, job)
        return SupervisedJob(name=state.name, uid=job.metadata.uid, spec=spec, observed=observed, decision=decision)

    def _is_ours(self) -> bool:
        """Whether the annotations of the job, of its templates or of its pods opt in.

        A job of which only the pods opt in stays supervised while it has no pods, for example when it is suspended. The
        job's own annotation counts most: a job that opts out is let go, once it has been resumed if the supervisor has
        suspended it.
        """
        job, pods, suspended_here = self.job, self.state.pods, self.job.annotations.get(SUSPENDED_BY) == OURS
        if opts_out(job.annotations):
            return suspended_here and not pods
        if any(opts_in(found) for found in (*self.annotations, *(pod.annotations for pod in pods))):
            return True
        before = self.known is not None and not self.known.spec.refused
        return not pods and (before or suspended_here)

    def _refused(self, why: str) -> SupervisedJob | None:
        """The job with an unknown size, which is stored so that people see why it is not supervised.

        None for one that was supervised, which is let go.
        """
        known, result = self.known, self.result()
        if self.job.taken_back and known is not None and known.observed.result in STATUS_OF:
            return None  # It was ended by a suspension, and runs again.
        if known is not None and (known.over or not known.spec.refused):
            return known if known.over else None
        if known is not None:
            return replace(known, observed=replace(known.observed, result=result))
        if result is not None:
            return None
        name, now = self.job.metadata.name, self.now
        return SupervisedJob(
            name=self.state.name,
            uid=self.job.metadata.uid,
            spec=Spec(
                framework=self.framework,
                min_workers=1,
                max_workers=1,
                requested_workers=1,
                capabilities=_REFUSED,
                ignored=(why,),
                refused=True,
            ),
            observed=Observed(launcher=name, instance="", registered_at=now),
            decision=Decision(generation=1, phase=Phase.WAITING, reason=why, waiting_since=now),
        )


def _with_checkpoint(decision: Decision, job: JobObject) -> Decision:
    """The first decision about a job with the step from which it resumes, as far as its object names one."""
    step, reason = step_of(job), decision.reason
    if job.moved_with is not None:
        where = "its checkpoint is not known" if step is None else f"it resumes from the checkpoint of step {step}"
        reason = f"{reason} Its hub has moved the job here; {where}."
    return replace(decision, resumes_from=step, reason=reason)


def refusal(sizes: Collection[int]) -> str:
    """Why a job with these numbers of pods by role is not supervised; empty if they are within the bounds."""
    if len(sizes) > MAX_ROLES:
        return f"The job is not supervised: it has {len(sizes):,} roles, more than {MAX_ROLES:,}."
    if sum(sizes) > MAX_HOSTS:
        return f"The job is not supervised: it asks for more than {MAX_HOSTS:,} workers."
    return ""


def marked_result(annotations: Mapping[str, str]) -> Result | None:
    """The result of a job that the supervisor has ended; None if it has not."""
    return next((result for result, status in STATUS_OF.items() if annotations.get(STATUS) == status), None)


def in_its_queue(job: SupervisedJob, state: JobState[Any]) -> SupervisedJob:
    """The first stored form of a job that a queue has suspended: it is in the phase Queued.

    As one that is suspended here, it would be released and registered again when the queue starts it before the first
    plan was made, as for one that a person has resumed. That came with most starts.
    """
    suspended_by_queue = state.job.suspended and state.job.annotations.get(SUSPENDED_BY) != OURS
    if state.admission is None or not suspended_by_queue or job.decision.phase is not Phase.SUSPENDED:
        return job
    reason = job.observed.queue or waiting(job.spec)
    return replace(job, decision=replace(job.decision, phase=Phase.QUEUED, reason=reason, waiting_since=None))


def observed_launcher(launcher: Pod | None, known: SupervisedJob | None, before: Observed) -> Observed:
    """The facts about the run, read from the launcher's pod.

    A new launcher is a new run. The number of a run that was ordered but never started is not reused.
    """
    if launcher is None:
        return replace(before, running=False, exit_code=_KILLED if before.running else before.exit_code)
    running = launcher.phase is PodPhase.RUNNING and launcher.exit_code is None
    code = launcher.exit_code
    if code is None and launcher.over:
        code = int(launcher.phase is PodPhase.FAILED)
    return observed_run(launcher.metadata.uid, known, replace(before, running=running, exit_code=code))


def observed_run(run_id: str, known: SupervisedJob | None, observed: Observed) -> Observed:
    """The facts with the number of the run of this id. A new id means a new run."""
    if run_id == observed.instance:
        return observed
    run = max(observed.run + 1, 0 if known is None else known.decision.run)
    return replace(observed, run=run, instance=run_id)
