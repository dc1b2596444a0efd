"""The control loop is level-triggered. It plans jobs from one snapshot, and stores decisions before it acts on them.

The cost of a pass depends on what has changed: an unchanged job is not planned.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault
from servicekit.reconcile import KeyedWorkQueue, Wakeup
from supervisor.control.facts import Announced, Facts
from supervisor.control.pool import JobIndex, Placements
from supervisor.decide.grant import Grant
from supervisor.decide.plan import Plan, plan
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts
from supervisor.domain.ids import Host, JobId, JobName
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.failpoints import At
from supervisor.fanout.members import MemberStreams
from supervisor.fanout.processes import Processes
from supervisor.fanout.ranks import RankStates, Saves
from supervisor.jobs.adapter import Adapter
from supervisor.store.interface import Snapshot, Store, StoreUnavailableError

_RETRY_SECONDS = 0.2
_MAX_NOTICES = 20
"""Notices in one log line: a whole zone may be reclaimed at once."""

_NOTHING = Grant()

V = TypeVar("V")

_log = structlog.get_logger()


@dataclass(slots=True)
class PlanRequests:
    """Collects jobs until the next pass; `on_request` is called with every request."""

    on_request: Callable[[], None]
    _jobs: set[JobName] = field(default_factory=set)

    def add(self, job: JobName) -> None:
        """Requests that the next pass plans the job."""
        self._jobs.add(job)
        self.on_request()

    def take(self) -> set[JobName]:
        """Returns all jobs that were added since the last call."""
        jobs, self._jobs = self._jobs, set()
        return jobs


def _subjects(job: SupervisedJob, placements: Placements) -> frozenset[str]:
    """The subjects of notices that concern the job: nodes by name, pods by uid."""
    if placements is None:
        return job.own_hosts
    own = [placement for host, placement in placements.items() if host in job.own_hosts]
    return frozenset(subject for placement in own for subject in (placement.node, placement.pod))


class Schedule:
    """Compares the inputs of each job's plan with those of its last one.

    The inputs are the stored job, the placements of its hosts, the notices on them, and its grant. Other reasons to
    plan a job, such as a change of rank 0, are added to `marked`.

    Attributes:
        marked: The jobs that are due in the next pass.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._concerned = JobIndex(_subjects)
        self._announced: tuple[Announced, ...] = ()
        self._granted: Mapping[JobName, Grant] = {}
        self._caught_up_at = facts.caught_up_at
        self.marked: set[JobName] = set()
        self._wakes: dict[JobName, float] = {}

    def changed(self, jobs: Mapping[JobName, SupervisedJob]) -> Collection[JobName]:
        """The jobs that are new, removed or changed, or whose notices changed; they become due."""
        changed = self._concerned.follow(jobs, self._facts.cluster_facts.placements)
        before, self._announced = self._announced, self._facts.announced
        for known, announced in zip(before, self._announced, strict=False):  # In the first pass every job is new.
            changed |= self._concerned.of(set(_differing(known, announced)))
        if self._facts.caught_up_at != self._caught_up_at:
            self._caught_up_at = self._facts.caught_up_at
            changed |= jobs.keys()
        self.marked |= changed
        return changed

    def due(
        self, jobs: Mapping[JobName, SupervisedJob], granted: Mapping[JobName, Grant], now: float
    ) -> Collection[JobName]:
        """The jobs to plan now."""
        self.marked.update(_differing(self._granted, granted))
        self.marked.update(name for name, at in self._wakes.items() if at <= now)
        due, self.marked, self._granted = self.marked, set(), granted
        for name in due - jobs.keys():
            self._wakes.pop(name, None)
        return due & jobs.keys()

    def planned(self, name: JobName, wake_at: float | None) -> None:
        """Records that the job was planned, and when it is due again."""
        if wake_at is None:
            self._wakes.pop(name, None)
        else:
            self._wakes[name] = wake_at

    @property
    def wake_at(self) -> float | None:
        """The earliest instant at which a job is due."""
        return min(self._wakes.values(), default=None)


def _differing(before: Mapping[Any, V], after: Mapping[Any, V]) -> Iterator[Any]:
    """The keys whose values differ between the mappings, or that only one of them has."""
    if before is after:
        return
    for key, value in after.items():
        known = before.get(key)
        # Identity first, as most objects are the same: comparing thousands of notices by value would be slow.
        if known is not value and known != value:
            yield key
    yield from before.keys() - after.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDependencies:
    """The dependencies of the loop; `wakeup` is set whenever the store, an agent or the cluster has changed.

    `may_act` returns whether no other supervisor can lead now.
    """

    store: Store
    facts: Facts
    processes: Processes
    ranks: RankStates
    saves: Saves
    members: MemberStreams
    adapter: Adapter
    may_act: Callable[[], bool]
    policy: Policy
    clock: Clock
    requests: PlanRequests
    wakeup: Wakeup
    bulkhead: Bulkhead


@dataclass(frozen=True, slots=True)
class _VisibleState:
    """The part of a job that its processes can see; `job` distinguishes it from an earlier job with its name."""

    job: JobId
    decision: Decision
    run: int
    running: bool
    notices: Mapping[Host, ReclaimNotice]


def _own(job: SupervisedJob, noticed: Mapping[Host, ReclaimNotice]) -> Mapping[Host, ReclaimNotice]:
    """The notices on a job's own hosts. When 100 jobs each scanned all 2,500 notices, that took a third of a pass."""
    return {host: noticed[host] for host in job.own_hosts if host in noticed} if noticed else noticed


class Control:
    def __init__(self, deps: ControlDependencies) -> None:
        self._deps = deps
        self._schedule = Schedule(deps.facts)
        self._store_fault = Fault("store", deps.clock)
        self._visible: dict[JobName, _VisibleState] = {}
        self._plans: dict[JobName, tuple[SupervisedJob, Plan]] = {}
        self._granted: Mapping[JobName, Grant] = {}
        self._bulkhead = deps.bulkhead
        self._queue = KeyedWorkQueue("settle", self._execute, deps.bulkhead)
        self._failing: set[JobName] = set()
        self._since = deps.clock.now()

    async def run(self) -> None:
        """Root task: makes a pass whenever something has changed or is due.

        Passes take at most half of the time: when thousands of agents connect to a new leader, each is a change, and
        would otherwise wait for a pass over all jobs.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(), name="control.queue")
            while True:
                begun = self._deps.clock.monotonic()
                seconds = self._guarded_pass()
                await asyncio.sleep(self._deps.clock.monotonic() - begun)
                await self._deps.wakeup.wait(seconds)

    def _guarded_pass(self) -> float | None:
        """Makes a pass.

        If it raises, the next pass follows after a pause and plans all jobs, as any may be marked as done.
        """
        seconds = None
        with self._bulkhead.guard("pass") as attempt:
            seconds = self._pass()
        if attempt.failed:
            self._visible.clear()
            self._schedule.marked.update(self._deps.store.snapshot().jobs)
        return attempt.retry_in if attempt.failed else seconds

    def _pass(self) -> float | None:
        """Plans the jobs that have changed or are due; returns the seconds until the next job is due, or None."""
        snapshot, now = self._deps.store.snapshot(), self._deps.clock.now()
        # Processes are told about a notice before there is a decision about it.
        changed = self._visibly_changed(snapshot, self._schedule.changed(snapshot.jobs))
        self._deps.processes.refresh(changed)
        self._deps.members.refresh(changed)
        if not self._deps.may_act():
            return _RETRY_SECONDS
        with self._bulkhead.guard("grant") as attempt:
            self._granted = self._deps.facts.granted(snapshot.jobs)
        granted = self._granted  # The last ones after a fault: who must stop or leave does not wait for grants.
        self._schedule.marked.update(self._deps.requests.take())
        for name in self._schedule.due(snapshot.jobs, granted, now):
            job = snapshot.jobs[name]
            planned = self._guarded_plan(job, granted.get(name, _NOTHING), now)
            if planned is None:
                continue
            self._schedule.planned(name, planned.wake_at)
            if planned.actions or planned.decision != job.decision:
                # A plan that is being executed is not replaced: it changes the state that the next one starts from.
                self._plans.setdefault(name, (job, planned))
                self._queue.add(name)
        # Grants depend on when notices become due as well, also on hosts that no job has.
        retry_at = None if attempt.retry_in is None else now + attempt.retry_in
        moments = [at for at in (self._schedule.wake_at, self._deps.facts.changes_at, retry_at) if at is not None]
        return max(0.0, min(moments) - self._deps.clock.now()) if moments else None

    def _guarded_plan(self, job: SupervisedJob, grant: Grant, now: float) -> Plan | None:
        """Plans one job; returns None if that raises, or raised a moment ago. The job is due again after the pause."""
        if pause := self._bulkhead.pause("plan", job.name):
            self._schedule.planned(job.name, now + pause)
            return None
        with self._bulkhead.guard("plan", job.name) as attempt:
            return self._planned(job, grant, now)
        self._schedule.planned(job.name, now + (attempt.retry_in or 0.0))
        return None

    def _visibly_changed(self, snapshot: Snapshot, changed: Iterable[JobName]) -> list[JobName]:
        """The changed jobs whose visible state is different."""
        before = {name: self._visible.pop(name, None) for name in changed}
        visible = dict[JobName, _VisibleState]()
        for job in [snapshot.jobs[name] for name in before if name in snapshot.jobs]:
            with self._bulkhead.guard("show", job.name):
                notices = _own(job, self._deps.facts.shown(job.name))
                run, is_running = job.observed.run, job.observed.running
                visible[job.name] = _VisibleState(job.id, job.decision, run, is_running, notices)
        self._visible.update(visible)
        return [name for name, state in visible.items() if before[name] != state]

    def _planned(self, job: SupervisedJob, grant: Grant, now: float) -> Plan:
        noticed = _own(job, self._deps.facts.noticed(job.name))
        present, run = job.decision.round, job.observed.run
        # The processes of other hosts wait to join the round, or are about to end; without a round all train together.
        training = frozenset(present.hosts) if present is not None and present.run == run else None
        facts = JobFacts(
            notices=noticed,
            ahead=self._deps.facts.ahead(job),
            ranking=self._deps.facts.ranking(),
            gone=self._deps.facts.gone(job),
            terminating=self._deps.facts.terminating(job, noticed),
            granted=grant.hosts,
            probe=grant.probe,
            held_up=grant.held_up,
            more=grant.more,
            saved_step=self._deps.saves.step_of(job.id),
            rank_zero=self._deps.processes.rank_zero(job.id, run),
            ranks=self._deps.ranks.of(job.id, run, training),
            members=self._deps.members.of(job.id, run),
            since=max(self._since, self._deps.facts.caught_up_at),
        )
        return plan(job, facts, now, self._deps.policy)

    async def _execute(self, name: JobName) -> float | None:
        """Executes a job's plan; requests a new one after a failure, or if the job became due meanwhile."""
        if name not in self._plans:
            self._deps.requests.add(name)
            return None
        try:
            return None if await self._is_executed(*self._plans[name]) else _RETRY_SECONDS
        finally:
            del self._plans[name]

    async def _is_executed(self, job: SupervisedJob, planned: Plan) -> bool:
        try:
            done = await self._carry_out(job, planned)
        except StoreUnavailableError as error:
            self._failing.add(job.name)
            self._store_fault.failed(str(error))
            return False
        self._failing.discard(job.name)
        self._failing.intersection_update(self._deps.store.snapshot().jobs)
        if not self._failing:
            self._store_fault.recovered()
        return done

    async def _carry_out(self, job: SupervisedJob, planned: Plan) -> bool:
        """Stores the decision and passes on its actions; returns False if the plan must be executed again."""
        decided = replace(job, decision=planned.decision)
        if planned.decision != job.decision:
            failpoint(At.DECISION_MADE)
            if not await self._deps.store.decide(job, planned.decision):
                return True  # The job has changed meanwhile, so another pass is due.
            failpoint(At.DECISION_STORED)
            _record(job.decision, decided, self._deps.facts.noticed(job.name))
            self._deps.processes.refresh([job.name])
            self._deps.members.refresh([job.name])
            failpoint(At.DIRECTIVES_PUSHED)
        if not self._deps.may_act():  # The write may have taken longer than the lease.
            return False
        if not await self._deps.adapter(decided, planned.actions):
            self._schedule.marked.add(job.name)
        failpoint(At.ORDER_PUBLISHED)
        return True


def _record(before: Decision, job: SupervisedJob, noticed: Mapping[Host, ReclaimNotice]) -> None:
    decision = job.decision
    # The notices that led to a decision which excludes hosts or stops the job, so that a search for one finds it.
    is_stop = decision.stop is not None and before.stop is None
    concerned = (job.own_hosts if is_stop else decision.exclusions) - before.exclusions
    notices = sorted({noticed[host].id for host in concerned if host in noticed})
    _log.info(
        "job.decided",
        job=job.name,
        phase=decision.phase,
        generation=decision.generation,
        run=decision.run,
        hosts=len(decision.hosts),
        excluded=len(decision.exclusions),
        notices=notices[:_MAX_NOTICES],
        reason=decision.reason,
    )
