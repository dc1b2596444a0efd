"""A small world to decide in: machines with agents, launchers, rank 0 of each job, and a supervisor that restarts.

The state of the world (`SimulatedLauncher`, `SimulatedMachine`) and what the supervisor knows of it (`SupervisedJob`,
notices) are kept apart: orders and reports travel, and may be late. `DecisionWorld.think` does the work of control, and
`check` looks at every decision.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace

from supervisor.decide.directives import JobDirectives, order_for
from supervisor.decide.grant import grants
from supervisor.decide.notices import Presence, apply_report, end_if_due, ends_at, replaced
from supervisor.decide.plan import Plan, actions, plan
from supervisor.decide.policy import Policy
from supervisor.decide.registration import (
    JobEndsError,
    JobIsOverError,
    LauncherFacts,
    Registration,
    acknowledge,
    observe,
    register,
    with_request,
)
from supervisor.decide.situation import JobFacts, RankZero
from supervisor.decide.urgency import NodeIdentities, NoticesByUrgency, binding, by_urgency, next_change, noticed_hosts
from supervisor.domain.ids import Host, JobName, NoticeId
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    Capability,
    HubMarks,
    Phase,
    RequestKind,
    Result,
    Spec,
    SupervisedJob,
    UserRequest,
)
from supervisor.domain.notice import Announcement, NoticeState, ReclaimNotice, Report, Subject, SubjectKind
from supervisor.domain.order import (
    Action,
    EndJob,
    Order,
    OrderKind,
    ProcessDirectiveKind,
    SetHostList,
    StartRun,
    SuspendRun,
    Worker,
    WriteHubMarks,
)
from tests.supervisor.decide.decide_builders import METADATA, T0

POLICY = Policy()
_MAX_PASSES = 12

Check = Callable[["DecisionWorld", SupervisedJob, JobFacts, Plan], None]


@dataclass(slots=True)
class SimulatedMachine:
    """One machine and its agent, which says `announcing` (an instant, None = clear) while it is `alive`."""

    host: Host
    uid: str
    alive: bool = True
    connected: bool = True
    session: int = 1
    revision: int = 0
    announcing: float | None = None


@dataclass(slots=True)
class SimulatedLauncher:
    """The actual state of one job: its launcher's process, the command it runs, and rank 0 in it."""

    listed: frozenset[Host]
    order: Order | None = None
    inbox: Order | None = None
    hosts: frozenset[Host] = frozenset()
    exclusions: frozenset[Host] = frozenset()
    run: int = 0
    running: bool = False
    exit_code: int | None = None
    ending: bool = False
    asked_to_end_job: bool = False
    applied: int = 0
    revision: int = 0
    result: Result | None = None
    told: tuple[int, int] | None = None
    connected: bool = True

    @property
    def in_use(self) -> frozenset[Host]:
        return (self.hosts - self.exclusions) & self.listed if self.running else frozenset()

    @property
    def report(self) -> LauncherFacts:
        return LauncherFacts(
            revision=self.revision,
            hosts=self.listed,
            run=self.run,
            running=self.running,
            exit_code=self.exit_code,
            applied=self.applied,
            ending=self.asked_to_end_job,
            result=self.result,
        )

    def do(self, action: Action, generation: int) -> None:
        match action:
            case SetHostList(hosts, exclusions):
                self.hosts, self.exclusions, self.applied = hosts, exclusions, generation
            case StartRun(run):
                self.start(run)
            case SuspendRun():
                self.end(-15)
                self.applied = generation
            case EndJob(result):
                self.end(-15)
                self.result = result

    def obey(self, order: Order) -> None:
        """Does what an order says, as kubeai-run does: a command that is to end takes its time."""
        if order.generation < self.applied or self.result is not None:
            return
        self.order, self.applied = order, order.generation
        self.hosts, self.exclusions = frozenset(order.hosts), frozenset(order.exclusions)
        if order.kind is OrderKind.RUN:
            self.start(order.run)
        else:
            self.ending = self.running
        if order.kind is OrderKind.END:
            self.result = Result.TIMED_OUT if order.phase is Phase.TIMED_OUT else Result.TERMINATED

    def start(self, run: int) -> None:
        """Starts a run that is later than the last one, unless the job is being ended."""
        if run > self.run and self.result is None and not self.asked_to_end_job:
            self.run, self.running, self.exit_code, self.told = run, True, None, None

    def end(self, exit_code: int) -> None:
        if self.running:
            self.running, self.ending, self.exit_code = False, False, exit_code


@dataclass(slots=True)
class History:
    """The rules' own record of a job."""

    resuming_since: float | None = None
    below_since: float | None = None
    run: int = 0
    run_since: float = 0.0
    rests_until: float = 0.0


@dataclass(slots=True)
class DecisionWorld:
    check: Check
    now: float = T0
    machines: dict[Host, SimulatedMachine] = field(default_factory=dict)
    jobs: dict[JobName, SupervisedJob] = field(default_factory=dict)
    launchers: dict[JobName, SimulatedLauncher] = field(default_factory=dict)
    notices: dict[NoticeId, ReclaimNotice] = field(default_factory=dict)
    rank_zeros: dict[JobName, RankZero] = field(default_factory=dict)
    histories: dict[JobName, History] = field(default_factory=dict)
    plans: dict[JobName, Plan] = field(default_factory=dict)
    machines_made: int = 0
    streams_are_up: bool = True

    def fork(self) -> "DecisionWorld":
        other = copy(self)
        other.machines = {host: copy(machine) for host, machine in self.machines.items()}
        other.launchers = {name: copy(launcher) for name, launcher in self.launchers.items()}
        other.histories = {name: copy(history) for name, history in self.histories.items()}
        other.jobs, other.notices, other.plans = dict(self.jobs), dict(self.notices), dict(self.plans)
        other.rank_zeros = dict(self.rank_zeros)
        return other

    # Building it.

    def add_machine(self, host: Host) -> None:
        """A new machine, under a new or an old name, with a clear and connected agent."""
        self.machines_made += 1
        self.machines[host] = SimulatedMachine(host, f"uid-{self.machines_made}")
        self._greet(self.machines[host])

    def add_job(self, name: JobName, spec: Spec, listed: frozenset[Host]) -> None:
        launcher = SimulatedLauncher(listed)
        hello = Registration(name=name, uid=name, launcher=name, instance=name, spec=spec, report=launcher.report)
        self.launchers[name] = launcher
        job = register(None, hello, live=False, now=self.now)
        if spec.can(Capability.MOVES):
            job = replace(job, observed=replace(job.observed, hub=HubMarks()))
        self.jobs[name] = job
        self.histories[name] = History()
        self._look_for_rank_zero()

    # What happens to machines.

    def announce(self, host: Host, lead: float) -> None:
        """The metadata says, or says differently, when the machine will be gone."""
        machine = self.machines[host]
        if machine.alive:
            machine.announcing = self.now + lead
            self._say(machine)

    def take_back(self, host: Host) -> None:
        """The metadata says no longer that the machine will be gone."""
        machine = self.machines[host]
        if machine.alive:
            machine.announcing = None
            self._say(machine)

    def repeat_late(self, host: Host, lead: float) -> None:
        machine = self.machines[host]
        reported = [notice for notice in self.notices.values() if notice.source == METADATA]
        if any(notice.subject.uid == machine.uid for notice in reported):
            self._report(machine, Announcement.ACTIVE, lead, machine.revision - 1)

    def kill(self, host: Host) -> None:
        """The machine is gone, announced or not. Nothing says so but its silence."""
        machine = self.machines[host]
        machine.alive = machine.connected = False

    def restart_agent(self, host: Host) -> None:
        machine = self.machines[host]
        if machine.alive:
            machine.session, machine.revision, machine.connected = machine.session + 1, 0, True
            self._greet(machine)

    def cut(self, host: Host) -> None:
        self.machines[host].connected = False

    # What happens to launchers and their commands.

    def send(self, name: JobName) -> None:
        self.launchers[name].inbox = order_for(self.jobs[name])

    def deliver(self, name: JobName) -> None:
        """The order that is on its way arrives and is obeyed."""
        launcher = self.launchers[name]
        if launcher.inbox is not None:
            launcher.obey(launcher.inbox)
            launcher.inbox = None

    def serve(self, name: JobName) -> None:
        self.obey_unseen(name)
        self.reap(name)
        self.report(name)
        self.mark(name)

    def obey_unseen(self, name: JobName) -> None:
        self.send(name)
        self.deliver(name)

    def reap(self, name: JobName) -> None:
        if self.launchers[name].ending:
            self.launchers[name].end(-15)

    def carry_out(self, name: JobName, most: int) -> None:
        """Control carries out the first `most` of its actions, and is interrupted then."""
        job = self.jobs[name]
        for action in actions(job)[:most]:
            self.launchers[name].do(action, job.decision.generation)
        self.mark(name)

    def mark(self, name: JobName) -> None:
        """The object of a job tells its hub what control wants it to, which is seen at once."""
        job = self.jobs[name]
        for action in actions(job):
            if isinstance(action, WriteHubMarks):
                assert not (action.marks.given_up and self.launchers[name].running), "it would run in two clusters"
                self.jobs[name] = replace(job, observed=replace(job.observed, hub=action.marks))

    def report(self, name: JobName) -> None:
        launcher = self.launchers[name]
        launcher.revision += 1
        self.jobs[name] = observe(self.jobs[name], name, name, launcher.report)
        if launcher.asked_to_end_job and not launcher.running and launcher.result is None:
            launcher.result = Result.TERMINATED  # Which the next report says.

    def end_job(self, name: JobName) -> None:
        """Terminate the job: its launcher waits for the run to be stopped."""
        if self.launchers[name].result is None:
            self.launchers[name].asked_to_end_job = True
            self.report(name)

    def ask(self, name: JobName, kind: RequestKind | None) -> None:
        """A person suspends the job, stops it for good, or takes that back."""
        request = None if kind is None else UserRequest(kind=kind, by="ann", reason="tests", at=self.now)
        with suppress(JobIsOverError, JobEndsError):
            self.jobs[name] = with_request(self.jobs[name], request)

    def list_hosts(self, name: JobName, listed: frozenset[Host]) -> None:
        """The operator's list changes, where the job is not over; the launcher has its present order by then."""
        if self.launchers[name].result is not None:
            return
        self.obey_unseen(name)
        self.launchers[name].listed = listed
        self.report(name)

    def fail(self, name: JobName) -> None:
        self.launchers[name].end(1)

    def relaunch(self, name: JobName) -> None:
        """The launcher starts a failed run again, by itself and unless it knows of a STOP."""
        launcher = self.launchers[name]
        order = launcher.order
        may = order is not None and order.kind is OrderKind.RUN and not order.stopping
        if may and not launcher.running and launcher.exit_code == 1:
            launcher.start(launcher.run + 1)

    def restart_unseen(self, name: JobName) -> None:
        """A failure is reported; that the launcher has started the run again is not."""
        self.fail(name)
        self.report(name)
        self.relaunch(name)

    def restart_seen(self, name: JobName) -> None:
        """A run fails and is started again before anybody has looked."""
        self.fail(name)
        self.relaunch(name)
        self.report(name)

    def finish(self, name: JobName, result: Result) -> None:
        """The job is over; a launcher that is terminated says so before its command has ended."""
        launcher = self.launchers[name]
        if launcher.running and launcher.result is None:
            if result is not Result.TERMINATED:
                launcher.end(0 if result is Result.SUCCEEDED else 1)
            launcher.result = result
            self.report(name)

    def answer(self, name: JobName) -> None:
        """Rank 0, if it has been told to stop, has saved its checkpoint and says so."""
        launcher = self.launchers[name]
        if launcher.told is None or not (launcher.running and launcher.connected):
            return
        run, generation = launcher.told
        answer = Acknowledgement(run=run, generation=generation, kind=AcknowledgementKind.SAVED, step=1, at=self.now)
        known = acknowledge(self.jobs[name], self._rank_zero(name), answer)
        assert known is not None
        self.jobs[name] = known

    def connect_rank_zero(self, name: JobName, *, connected: bool) -> None:
        """Rank 0's stream comes or goes."""
        self.launchers[name].connected = connected
        self._look_for_rank_zero()

    # The supervisor.

    def restart(self) -> None:
        """Loses what is not stored: who is connected, and for how long nobody has been rank 0."""
        for machine in self.machines.values():
            machine.connected = False
        self.streams_are_up = False
        self.rank_zeros = dict.fromkeys(self.jobs, RankZero(connected=False, since=self.now))

    def reconnect(self) -> None:
        for machine in self.machines.values():
            if machine.alive and not machine.connected:
                machine.connected = True
                self._greet(machine)
        self.streams_are_up = True
        self._look_for_rank_zero()

    def think(self) -> None:
        """Passes over all jobs, each from one look at the world as control takes it, until nothing changes."""
        for _ in range(_MAX_PASSES):
            self._age()
            self._look_for_rank_zero()
            views = {name: self.facts(name) for name in self.jobs}
            if not [name for name, facts in views.items() if self._decide(name, facts)]:
                return
        raise AssertionError("decisions do not come to rest")

    def facts(self, name: JobName) -> JobFacts:
        noticed = self.noticed()
        granted = grants(self.jobs.values(), self.available(), noticed)
        return JobFacts(
            notices=noticed,
            ahead=self.ahead(),
            granted=granted.get(name, frozenset()),
            rank_zero=self.rank_zeros[name],
        )

    def noticed(self) -> dict[Host, ReclaimNotice]:
        return noticed_hosts(self._by_urgency().acted_on, self._identities(), POLICY)

    def ahead(self) -> dict[Host, Sequence[ReclaimNotice]]:
        found = binding(self._by_urgency().ahead, self._identities())
        return {Host(name): notices for name, notices in found.items()}

    def _by_urgency(self) -> NoticesByUrgency:
        return by_urgency(self.notices.values(), self.now, POLICY)

    def _identities(self) -> NodeIdentities:
        return NodeIdentities({machine.host: machine.uid for machine in self.machines.values() if machine.connected})

    def available(self) -> frozenset[Host]:
        clear = {each.host for each in self.machines.values() if each.connected and each.announcing is None}
        return frozenset(clear.difference(self.noticed()))

    def advance(self, seconds: float) -> None:
        """Lets time pass: nothing is decided before the instants that the plans have named."""
        end = self.now + seconds
        for instant in self._instants(end):
            between = (self.now + instant) / 2
            for name, job in self.jobs.items():
                early = plan(job, self.facts(name), between, POLICY)
                assert early.decision == job.decision, f"decided at {between - T0}, named {instant - T0}: {early}"
            self.now = instant
            self.think()

    def _instants(self, end: float) -> Iterator[float]:
        """The next instant of interest until `end`, again and again; `now` has moved there when it is asked again."""
        while self.now < end:
            yield min([end, *(at for at in self._due() if at > self.now)])

    def _due(self) -> Iterator[float]:
        yield from (planned.wake_at for planned in self.plans.values() if planned.wake_at is not None)
        for notice in self.notices.values():
            if notice.state is NoticeState.ACTIVE:
                yield ends_at(notice, self._seen(notice), POLICY)
                yield next_change(notice, self.now, POLICY) or math.inf

    def _decide(self, name: JobName, facts: JobFacts) -> bool:
        job = self.jobs[name]
        planned = self.plans[name] = plan(job, facts, self.now, POLICY)
        self.check(self, job, facts, planned)
        self.jobs[name] = replace(job, decision=planned.decision)
        self._tell_rank_zero(name)
        return planned.decision != job.decision

    def _age(self) -> None:
        for key, notice in self.notices.items():
            self.notices[key] = end_if_due(notice, self._seen(notice), self.now, POLICY)

    def _seen(self, notice: ReclaimNotice) -> Presence:
        machine = self.machines.get(Host(notice.subject.name))
        return Presence.PRESENT if machine is not None and machine.connected else Presence.SILENT

    def _greet(self, machine: SimulatedMachine) -> None:
        for key, notice in self.notices.items():
            if notice.subject.name == machine.host:
                self.notices[key] = replaced(notice, machine.uid, self.now)
        self._say(machine)

    def _say(self, machine: SimulatedMachine) -> None:
        machine.revision += 1
        if not machine.connected:
            return
        if machine.announcing is None:
            self._report(machine, Announcement.WITHDRAWN, None, machine.revision)
        else:
            self._report(machine, Announcement.ACTIVE, machine.announcing - self.now, machine.revision)

    def _report(self, machine: SimulatedMachine, announcement: Announcement, left: float | None, revision: int) -> None:
        report = Report(
            source=METADATA,
            subject=Subject(SubjectKind.NODE, machine.host, machine.uid),
            session=machine.session,
            revision=revision,
            announcement=announcement,
            seconds_left=left,
        )
        known = apply_report(self.notices.get(report.id), report, self.now, POLICY)
        if known is not None:
            self.notices[report.id] = known

    def _rank_zero(self, name: JobName) -> Worker:
        return Worker("rank 0", self.jobs[name].id, self.launchers[name].run, Host("rank-zero"), 0)

    def _rank_zero_known(self, name: JobName) -> bool:
        launcher = self.launchers[name]
        return launcher.running and launcher.connected and self.streams_are_up

    def _look_for_rank_zero(self) -> None:
        for name in self.jobs:
            connected, known = self._rank_zero_known(name), self.rank_zeros.get(name)
            if known is None or known.connected != connected:
                self.rank_zeros[name] = RankZero(connected, self.now)

    def _tell_rank_zero(self, name: JobName) -> None:
        launcher = self.launchers[name]
        if not self.rank_zeros[name].connected or launcher.told is not None:
            return
        directive = JobDirectives.of(self.jobs[name], self.noticed(), POLICY).directive(self._rank_zero(name))
        if directive.kind is ProcessDirectiveKind.STOP:
            launcher.told = (launcher.run, directive.generation)
