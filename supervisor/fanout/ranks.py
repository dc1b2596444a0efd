"""Keeps what training processes report about their steps: answers to agreements, and checkpoints of rank 0.

It is not stored. Every hello repeats what processes state about agreements.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from servicekit.own_thread import OwnThread
from supervisor.decide.ranks import NO_COSTS, NO_RANKS, ChangeCosts, Ranks, RankState
from supervisor.domain.agreement import MEMBERSHIP, Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host, Instant, JobId, JobName
from supervisor.domain.order import Worker
from supervisor.fanout.processes import MAX_STREAMS

_FINAL = frozenset({AnswerKind.REACHED, AnswerKind.HELD, AnswerKind.PASSED})
"""The answers after which a rank has nothing more to say about a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a process states about itself in a hello or report. None means that nothing has changed."""

    purposes: frozenset[Purpose] | None = None
    collective: bool | None = None
    world_size: int | None = None
    step_seconds: float | None = None
    start_seconds: float | None = None
    change_seconds: float | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Seconds that a process has measured; None is unknown. See `RankState`."""

    step_seconds: float | None = None
    checkpoint_seconds: float | None = None
    unread_seconds: float | None = None


@dataclass(slots=True)
class _JobRanks:
    run: int
    states: dict[str, RankState] = field(default_factory=dict)
    asked: Agreement | None = None
    unanswered: set[str] = field(default_factory=set)
    """The processes that have not answered `asked` yet: looking at all of them for each answer took 1,024² looks."""
    membership: frozenset[Purpose] = frozenset()
    stop: int = 0
    left: set[int] = field(default_factory=set)
    """The ranks that have acknowledged the STOP of generation `stop`."""
    costs: ChangeCosts = NO_COSTS
    """Also those that processes of earlier rounds and runs have measured."""
    saved: tuple[int, int] | None = None
    """The rank that was the first to save because of that STOP, and the step of its checkpoint."""


class RankStates:
    """Collects what the processes of each job report about agreed steps.

    Args:
        connected: The connected processes of a job.
        agreement: The present agreement of a job.
        on_complete: Called with a job when all its processes have answered its agreement: 1,024 answers are a reason to
            decide once.
    """

    def __init__(
        self,
        connected: Callable[[JobId], Collection[Worker]],
        agreement: Callable[[JobId], Agreement | None],
        on_complete: Callable[[JobName], None],
    ) -> None:
        self._connected = connected
        self._agreement = agreement
        self._on_complete = on_complete
        self._loop_thread = OwnThread()
        self._jobs: dict[JobId, _JobRanks] = {}

    def put_statement(self, worker: Worker, statement: Statement) -> None:
        """Records a statement. A process that has never agreed to anything is not recorded."""
        if worker.job not in self._jobs and not statement.purposes:
            return
        job, state = self._found(worker)
        if job is None or state is None:
            return
        changed = replace(
            state,
            rank=worker.rank,
            purposes=state.purposes if statement.purposes is None else statement.purposes,
            collective=state.collective if statement.collective is None else statement.collective,
            world_size=state.world_size if statement.world_size is None else statement.world_size,
            step_seconds=statement.step_seconds or state.step_seconds,
            start_seconds=statement.start_seconds or state.start_seconds,
            change_seconds=statement.change_seconds or state.change_seconds,
            epoch=max(state.epoch, statement.epoch),
        )
        job.states[worker.process] = changed
        # Later processes of a run are taken to agree to these if earlier ones did: a round may start new ones, of the
        # same script, and they say so only after their first steps.
        job.membership |= changed.purposes & MEMBERSHIP
        if changed.purposes != state.purposes:
            self._on_complete(worker.job.name)

    def answered(self, worker: Worker, answer: StepAnswer, measured: Measurements) -> None:
        """Records an answer."""
        job, state = self._found(worker)
        if job is None or state is None:
            return
        before = state.answer
        estimated: float | None = None
        if before is not None and answer.step > before.step:  # For a process that has not measured its pace yet.
            estimated = (answer.at - before.at) / (answer.step - before.step)
        job.states[worker.process] = replace(
            state,
            rank=worker.rank,
            epoch=max(state.epoch, answer.epoch),
            step_seconds=measured.step_seconds or estimated or state.step_seconds,
            checkpoint_seconds=measured.checkpoint_seconds or state.checkpoint_seconds,
            unread_seconds=measured.unread_seconds,
            # What a rank says about an earlier epoch or stage may come last.
            answer=answer if before is None or answer.follows(before) else before,
        )
        asked = self._agreement(worker.job)
        if asked is None or not answer.is_to(asked) or (asked.committed and answer.kind not in _FINAL):
            return
        if job.asked != asked:
            present = {each.process for each in self._connected(worker.job) if each.run == worker.run}
            # A process that waits to join a later round of torchrun does not agree to such steps yet.
            able = {process for process, state in job.states.items() if asked.purpose in state.purposes}
            job.asked, job.unanswered = asked, present & able
        job.unanswered.discard(worker.process)
        if not job.unanswered:
            self._on_complete(worker.job.name)

    def saved_otherwise(self, worker: Worker, generation: int, step: int | None) -> tuple[int, int] | None:
        """Returns a rank that has answered the STOP of a generation with another step than `step`, and that step."""
        job = self._jobs.get(worker.job)
        if job is None or job.run != worker.run or job.stop != generation or job.saved is None or step is None:
            return None
        return job.saved if job.saved[1] != step else None

    def acknowledged(self, worker: Worker, generation: int, saved_step: int | None = None) -> None:
        """Records that a process has saved or left because of the STOP of a generation."""
        job, state = self._found(worker)
        if job is None or state is None:
            return
        if generation > job.stop:
            job.stop, job.left, job.saved = generation, set(), None
        if generation == job.stop and worker.rank is not None and saved_step is not None and job.saved is None:
            job.saved = worker.rank, saved_step
        if generation == job.stop and worker.rank is not None:
            job.left.add(worker.rank)
        job.states[worker.process] = replace(state, rank=worker.rank, acknowledged=max(generation, state.acknowledged))
        if len(job.left) >= max(len(job.states), state.world_size or 0):
            self._on_complete(worker.job.name)

    def of(self, known: JobId, run: int, hosts: Collection[Host] | None = None) -> Ranks:
        """Returns the states of the connected processes of a run, only of those on `hosts` if it is given.

        It is empty for a job of which no process agrees to anything. A thread that renders a page changes nothing: an
        answer that the loop records meanwhile would be lost.
        """
        job = self._jobs.get(known)
        if job is None or job.run != run:
            return NO_RANKS
        workers = [worker for worker in self._connected(known) if worker.run == run]
        is_owner = self._loop_thread.is_here()
        if is_owner:
            job.states = {each.process: job.states[each.process] for each in workers if each.process in job.states}
        if hosts is not None:
            workers = [each for each in workers if each.host in hosts]
        states = list[RankState]()
        for worker in workers:
            state = job.states.get(worker.process)
            if state is None:
                state = RankState(process=worker.process, rank=worker.rank, purposes=job.membership)
            elif not state.purposes or state.rank != worker.rank:
                # Only where something differs: copying 1,024 states for each plan took 15 ms.
                state = replace(state, rank=worker.rank, purposes=state.purposes or job.membership)
            states.append(state)
        ranks = Ranks(tuple(states), frozenset(job.left), job.costs)
        if is_owner:
            job.costs = ranks.costs
        return ranks

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets the processes of all other jobs."""
        self._jobs = {known: job for known, job in self._jobs.items() if known in jobs}

    def _found(self, worker: Worker) -> tuple[_JobRanks | None, RankState | None]:
        """Returns the run of a worker's job, and the worker's state; None for an earlier run or a process too many."""
        job = self._jobs.get(worker.job)
        if job is None or job.run < worker.run:
            costs = NO_COSTS if job is None else job.costs
            job = self._jobs[worker.job] = _JobRanks(worker.run, costs=costs)
        if job.run > worker.run or (worker.process not in job.states and len(job.states) >= MAX_STREAMS):
            return None, None
        return job, job.states.get(worker.process) or RankState(process=worker.process, rank=worker.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A complete checkpoint of `run`, which `process` reported at `at`.

    `seconds` is how long one took last. It is None if that is unknown, as is `step` then.
    """

    run: int
    at: Instant
    process: str = ""
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _SavedSteps:
    """The steps of the last checkpoint of a job and of the one before it; None is unknown."""

    last: int
    before: int | None = None


@dataclass(eq=False, slots=True)
class Saves:
    """Keeps the last checkpoints of each job, as its rank 0 reported them.

    Attributes:
        last: The last checkpoint of each job of which this leader knows one.
    """

    last: dict[JobId, Save] = field(init=False, default_factory=dict)
    _steps: dict[JobId, _SavedSteps] = field(init=False, default_factory=dict)

    def saved(self, worker: Worker, seconds: float | None, now: Instant, step: int | None = None) -> None:
        """Records a checkpoint that a process has reported; only rank 0's counts."""
        known = self.last.get(worker.job)
        if worker.rank != 0 or (known is not None and worker.run < known.run):
            return
        if seconds is None and known is not None:
            seconds = known.seconds
        self.last[worker.job] = Save(run=worker.run, at=now, process=worker.process, step=step, seconds=seconds)
        self.has(worker, step)

    def has(self, worker: Worker, step: int | None) -> None:
        """Records the step of the last checkpoint that a process knows; only rank 0's counts."""
        known = self._steps.get(worker.job)
        if worker.rank != 0 or step is None or (known is not None and known.last == step):
            return
        self._steps[worker.job] = _SavedSteps(step, None if known is None else known.last)

    def resumed(self, worker: Worker, step: int) -> None:
        """Records the step of the checkpoint that a run has started from; only rank 0's counts."""
        if worker.rank != 0:
            return
        self._steps[worker.job] = _SavedSteps(step)
        if worker.job in self.last:  # Horovod's survivors go back to their last commit.
            self.last[worker.job] = replace(self.last[worker.job], step=None)

    def step_of(self, job: JobId) -> int | None:
        """Returns the step of the last checkpoint of a job, or of the one that it started from; None if unknown."""
        known = self._steps.get(job)
        return None if known is None else known.last

    def step_before(self, job: JobId, step: int | None) -> int | None:
        """Returns the step of the last checkpoint before a failed one of `step`, saved by rank 0 or not."""
        known = self._steps.get(job)
        if known is None or step is None or known.last < step:
            return None if known is None else known.last
        return known.before if known.before is not None and known.before < step else None

    def is_older(self, worker: Worker, step: int | None) -> bool:
        """Whether the process has already reported a checkpoint of a later step, because it saves in the background."""
        known = self.last.get(worker.job)
        if known is None or known.step is None or step is None or known.run != worker.run:
            return False
        return known.process == worker.process and step < known.step

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets all other jobs."""
        self.last = {job: save for job, save in self.last.items() if job in jobs}
        self._steps = {job: steps for job, steps in self._steps.items() if job in jobs}
