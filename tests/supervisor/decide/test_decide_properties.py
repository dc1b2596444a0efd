"""Properties of decisions under any order of events; `decide_rules.check` verifies each decision."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.grant import held, usable_workers
from supervisor.decide.plan import actions
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Capability, Framework, OnLoss, Phase, RequestKind, Result, Spec, SupervisedJob
from supervisor.domain.notice import NoticeClass, NoticeState, Subject, SubjectKind
from tests.supervisor.decide.decide_builders import first, notice
from tests.supervisor.decide.decide_rules import check
from tests.supervisor.decide.decide_world import POLICY, DecisionWorld
from tests.testkit.properties import examples

Event = Callable[[DecisionWorld], None]

HOSTS = sorted(first(8))
MAX_ROUNDS = 100

# The same examples each time, so that a failure is the change's and not the day's. Explaining one takes minutes.


def _events(jobs: int) -> st.SearchStrategy[Event]:
    """Anything at all; notices, obedience and time come most often, the end of a job seldom."""
    host = st.sampled_from(HOSTS)
    name = st.sampled_from(_names(jobs))
    lead = st.sampled_from([120.0, 300.0, 60.0, 6.0, 5.5, 1.0, -2.0, -400.0])
    return st.one_of(
        _time(),
        _time(),
        st.builds(partial, st.just(DecisionWorld.announce), host=host, lead=lead),
        st.builds(partial, st.just(DecisionWorld.announce), host=host, lead=st.just(120.0)),
        st.builds(partial, st.just(_announce_group), group=st.sets(host, min_size=2, max_size=4), lead=lead),
        st.builds(partial, st.just(DecisionWorld.take_back), host=host),
        st.builds(partial, st.just(DecisionWorld.repeat_late), host=host, lead=lead),
        _machine_events(host),
        st.builds(partial, st.just(DecisionWorld.serve), name=name),
        st.builds(partial, st.just(DecisionWorld.serve), name=name),
        st.builds(partial, st.just(DecisionWorld.answer), name=name),
        _late_words(name),
        _launcher_events(name, host),
        st.sampled_from([DecisionWorld.restart, DecisionWorld.reconnect]),
    )


def _time() -> st.SearchStrategy[Event]:
    seconds = st.sampled_from([0.5, 0.1, 1.25, 2.0, 5.0, 30.0, 120.0, 400.0])
    return st.builds(partial, st.just(DecisionWorld.advance), seconds=seconds)


def _announce_group(world: DecisionWorld, group: set[Host], lead: float) -> None:
    for host in sorted(group):
        world.announce(host, lead)


def _machine_events(host: st.SearchStrategy[Host]) -> st.SearchStrategy[Event]:
    happenings = st.sampled_from(
        [DecisionWorld.kill, DecisionWorld.add_machine, DecisionWorld.restart_agent, DecisionWorld.cut]
    )
    return st.builds(partial, happenings, host=host)


def _late_words(name: st.SearchStrategy[JobName]) -> st.SearchStrategy[Event]:
    """Orders, actions and reports that are on their way, or half done."""
    return st.one_of(
        st.builds(
            partial,
            st.sampled_from(
                [
                    DecisionWorld.send,
                    DecisionWorld.deliver,
                    DecisionWorld.obey_unseen,
                    DecisionWorld.reap,
                    DecisionWorld.report,
                ]
            ),
            name=name,
        ),
        st.builds(partial, st.just(DecisionWorld.carry_out), name=name, most=st.integers(1, 2)),
    )


def _launcher_events(name: st.SearchStrategy[JobName], host: st.SearchStrategy[Host]) -> st.SearchStrategy[Event]:
    return st.one_of(
        st.builds(
            partial,
            st.sampled_from(
                [DecisionWorld.fail, DecisionWorld.relaunch, DecisionWorld.restart_unseen, DecisionWorld.restart_seen]
            ),
            name=name,
        ),
        st.builds(partial, st.just(DecisionWorld.end_job), name=name),
        st.builds(partial, st.just(DecisionWorld.ask), name=name, kind=st.sampled_from([*RequestKind, None])),
        st.builds(partial, st.just(DecisionWorld.connect_rank_zero), name=name, connected=st.booleans()),
        st.builds(partial, st.just(DecisionWorld.list_hosts), name=name, listed=st.just(frozenset(HOSTS))),
        st.builds(
            partial, st.just(DecisionWorld.list_hosts), name=name, listed=st.sets(host, min_size=1).map(frozenset)
        ),
        st.builds(partial, st.just(_drop_hosts), name=name, dropped=st.sets(host, max_size=3)),
        st.builds(
            partial,
            st.just(DecisionWorld.finish),
            name=name,
            result=st.sampled_from([Result.SUCCEEDED, Result.FAILED, Result.TERMINATED]),
        ),
    )


def _drop_hosts(world: DecisionWorld, name: JobName, dropped: set[Host]) -> None:
    world.list_hosts(name, world.launchers[name].listed - dropped)


def _names(jobs: int) -> list[JobName]:
    return [JobName(f"job-{number}") for number in range(jobs)]


@st.composite
def _specs(draw: st.DrawFn, most: int) -> Spec:
    least, requested, largest = sorted(draw(st.tuples(*[st.integers(2, most)] * 3)))
    multiple = draw(st.sampled_from([1, 1, 2, 3]))
    requested = max(multiple, requested - requested % multiple)
    return Spec(
        framework=draw(st.sampled_from(Framework)),
        min_workers=min(least, requested),
        max_workers=max(largest, requested),
        requested_workers=requested,
        max_wait_seconds=draw(st.sampled_from([0.0, 0.0, 100.0])),
        launcher_host=draw(st.sampled_from([None, None, Host("n1"), Host("elsewhere")])),
        on_loss=draw(st.sampled_from([OnLoss.SHRINK, OnLoss.SHRINK, OnLoss.HOLD])),
        worker_multiple=multiple,
        capabilities=draw(st.sampled_from([frozenset[Capability](), frozenset({Capability.MOVES})])),
    )


def _world(specs: list[Spec]) -> DecisionWorld:
    """All machines are up, and every job that finds its hosts is running."""
    world = DecisionWorld(check)
    for host in HOSTS:
        world.add_machine(host)
    for name, spec in zip(_names(len(specs)), specs, strict=True):
        world.add_job(name, spec, frozenset(HOSTS))
        world.think()
        _happen(world, [partial(DecisionWorld.advance, seconds=2.0), partial(DecisionWorld.serve, name=name)])
    return world


def _happen(world: DecisionWorld, events: list[Event]) -> None:
    for event in events:
        event(world)
        world.think()
        _hosts_are_not_shared(world)
        _clear_hosts_are_free(world)


def _hosts_are_not_shared(world: DecisionWorld) -> None:
    """Neither by decision nor in fact: what is in use is held, and what is held is one job's."""
    for name, job in world.jobs.items():
        assert world.launchers[name].in_use <= held(job)
    for one, other in combinations(world.jobs.values(), 2):
        assert not held(one) & held(other)


def _clear_hosts_are_free(world: DecisionWorld) -> None:
    """What a connected agent says last about its machine is so, whatever turns up late."""
    clear = {each.host for each in world.machines.values() if each.connected and each.announcing is None}
    assert not clear & world.noticed().keys()


def _end_well(world: DecisionWorld) -> None:
    """No notices any more, capacity for all, and everybody does what is to be done."""
    needed = sum(job.spec.requested_workers for job in world.jobs.values())
    world.reconnect()
    for host in sorted({*HOSTS, *(Host(f"spare-{number}") for number in range(needed))}):
        machine = world.machines.get(host)
        if machine is None or not machine.alive:
            world.add_machine(host)
        world.take_back(host)
    for name in world.jobs:
        world.connect_rank_zero(name, connected=True)
        world.list_hosts(name, frozenset(world.machines))
        world.ask(name, None)
        if world.jobs[name].over:
            _happen(world, [partial(DecisionWorld.fail, name=name), partial(DecisionWorld.report, name=name)])
    if any(job.decision.given_up_since is not None for job in world.jobs.values()):
        _happen(world, [partial(DecisionWorld.advance, seconds=POLICY.move_timeout_seconds)])
    for _ in range(MAX_ROUNDS):
        world.think()
        if all(_is_well(world, name) for name in world.jobs):
            return
        for name in world.jobs:
            _happen(world, [partial(DecisionWorld.relaunch, name=name), partial(DecisionWorld.serve, name=name)])
            _happen(world, [partial(DecisionWorld.answer, name=name)])
        _happen(world, [partial(DecisionWorld.advance, seconds=5.0)])
    raise AssertionError({name: job.decision for name, job in world.jobs.items() if not _is_well(world, name)})


def _is_well(world: DecisionWorld, name: JobName) -> bool:
    job, launcher = world.jobs[name], world.launchers[name]
    if job.over:
        return not launcher.running
    if job.decision.phase is Phase.TIMED_OUT:
        return bool(job.spec.max_wait_seconds)
    workers = len(launcher.in_use)
    enough = workers == usable_workers(workers, job.spec) and 0 < workers <= job.spec.max_workers
    settled = launcher.applied == job.decision.generation and not job.decision.exclusions
    return job.decision.phase is Phase.RUNNING and enough and settled


@examples(150)
@given(spec=_specs(6), events=st.lists(_events(1), min_size=12, max_size=30))
def test_one_job_through_anything(spec: Spec, events: list[Event]) -> None:
    """Every decision on the way is sound, and once things are quiet the job runs, is over, or has timed out."""
    world = _world([spec])
    _happen(world, events)
    _end_well(world)


@examples(50)
@given(specs=st.lists(_specs(5), min_size=2, max_size=4), data=st.data())
def test_jobs_never_share_a_host(specs: list[Spec], data: st.DataObject) -> None:
    """Neither by decision nor in fact does a host ever serve two jobs, and in the end all of them run."""
    world = _world(specs)
    _happen(world, data.draw(st.lists(_events(len(specs)), min_size=12, max_size=30)))
    _end_well(world)


@examples(150)
@given(spec=_specs(6), events=st.lists(_events(1), min_size=6, max_size=20))
def test_an_interruption_changes_no_outcome(spec: Spec, events: list[Event]) -> None:
    """After whatever part of its actions control is killed, the next one brings about the same."""
    world = _world([spec])
    (name,) = world.jobs
    _happen(world, events)
    todo = actions(world.jobs[name])
    outcomes = {_outcome(world.fork(), name, done) for done in range(len(todo) + 1)}
    assert len(outcomes) == 1


@examples(100)
@given(spec=_specs(6), hosts=st.sets(st.sampled_from(HOSTS), min_size=1), events=st.lists(_events(1), max_size=25))
def test_a_notice_that_is_days_ahead_changes_no_decision(spec: Spec, hosts: set[Host], events: list[Event]) -> None:
    """Whatever happens meanwhile, and also if it is withdrawn in the middle."""
    plain, scheduled = _world([spec]), _world([spec])
    _look_ahead(scheduled, hosts, NoticeClass.SCHEDULED, 30 * 86400.0)
    for number, event in enumerate(events):
        if number == len(events) // 2:
            _withdraw_ahead(scheduled, min(hosts))
        _happen(plain, [event])
        _happen(scheduled, [event])
        assert scheduled.jobs == plain.jobs


@examples(100)
@given(spec=_specs(6), hosts=st.sets(st.sampled_from(HOSTS), min_size=1), events=st.lists(_events(1), max_size=25))
def test_a_hint_only_asks_for_a_checkpoint(spec: Spec, hosts: set[Host], events: list[Event]) -> None:
    """Phases, runs, hosts and exclusions are those of a job without it, and so is what launchers and ranks are told."""
    plain, hinted = _world([spec]), _world([spec])
    _look_ahead(hinted, hosts, NoticeClass.HINT, None)
    hinted.think()
    for event in events:
        _happen(plain, [event])
        _happen(hinted, [event])
        assert [_bare(job) for job in hinted.jobs.values()] == [_bare(job) for job in plain.jobs.values()]


def _look_ahead(world: DecisionWorld, hosts: set[Host], notice_class: NoticeClass, left: float | None) -> None:
    for host in sorted(hosts):
        known = replace(
            notice(1, left=left, seen=world.now),
            source=Source("ahead"),
            subject=Subject(SubjectKind.NODE, host, world.machines[host].uid),
            notice_class=notice_class,
        )
        world.notices[known.id] = known


def _withdraw_ahead(world: DecisionWorld, host: Host) -> None:
    for key, known in world.notices.items():
        if known.source == "ahead" and known.subject.name == host and known.state is NoticeState.ACTIVE:
            world.notices[key] = replace(known, state=NoticeState.WITHDRAWN, ended_at=world.now)


def _bare(job: SupervisedJob) -> tuple[object, ...]:
    """A job without what numbers and explains its decisions."""
    decision, observed = job.decision, job.observed
    what = (decision.phase, decision.run, decision.hosts, decision.exclusions, decision.window_until)
    return (*what, decision.stop is None, observed.hosts, observed.run, observed.running, observed.result)


def _outcome(world: DecisionWorld, name: JobName, done: int) -> tuple[object, ...]:
    world.carry_out(name, done)
    world.restart()
    world.reconnect()
    world.report(name)
    for _ in range(MAX_ROUNDS):
        world.think()
        todo = actions(world.jobs[name])
        if not todo:
            break
        world.carry_out(name, len(todo))
        world.report(name)
    decision, launcher = world.jobs[name].decision, world.launchers[name]
    if decision.phase in (Phase.RUNNING, Phase.SHRINKING, Phase.RESUMING, Phase.STOPPING):
        assert (launcher.hosts, launcher.exclusions) == (decision.hosts, decision.exclusions)
        assert launcher.run >= decision.run
    # The list of a launcher that runs nothing means nothing.
    reached = (launcher.in_use, launcher.run, launcher.running, launcher.result)
    return (decision.phase, decision.run, decision.hosts, decision.exclusions, *reached)


def test_a_job_that_loses_its_hosts_at_each_start_is_not_started_at_once() -> None:
    """Each run fails as its list is empty for half a minute; the list is complete again when the run has ended."""
    spec = Spec(framework=Framework.HOROVOD, min_workers=2, max_workers=6, requested_workers=6)
    world = _world([spec])
    (name,) = world.jobs
    serve = partial(DecisionWorld.serve, name=name)
    empty, full = (partial(DecisionWorld.list_hosts, name=name, listed=frozenset(listed)) for listed in ((), HOSTS))
    for _ in range(3):
        while not world.launchers[name].running:
            _happen(world, [partial(DecisionWorld.advance, seconds=1.0), serve])
        _happen(
            world,
            [empty, partial(DecisionWorld.advance, seconds=31.0), partial(DecisionWorld.fail, name=name), full, serve],
        )
    assert (world.jobs[name].decision.run, world.jobs[name].decision.short_runs) == (3, 3)
