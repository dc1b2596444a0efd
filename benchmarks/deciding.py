"""Decisions of a chosen size, ready to be made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from supervisor.decide.grant import grants
from supervisor.decide.plan import Plan, plan
from supervisor.decide.policy import Policy
from supervisor.decide.situation import JobFacts, RankZero
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Decision, Framework, Observed, Phase, Spec, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, Subject, SubjectKind

_NOW = 1_700_000_000.0
_POLICY = Policy()
_WORKERS = 8
_NOTICES = 5
"""Notices for each small job; all but one are on free hosts."""


class _Small(NamedTuple):
    jobs: list[SupervisedJob]
    available: frozenset[Host]
    noticed: Mapping[Host, ReclaimNotice]


def planning(workers: int) -> Callable[[], Plan]:
    """A plan of one job that has lost half of its workers, and can go on with a quarter."""
    hosts = _hosts("node", workers)
    job = _running("job", hosts, least=workers // 4)
    facts = _facts(_noticed(hosts[: workers // 2]))
    return lambda: plan(job, facts, _NOW, _POLICY)


def granting(count: int) -> Callable[[], Sequence[Plan]]:
    """The grants of all jobs and a plan of each: half of the jobs run, the others wait for hosts."""
    world = _world(count)

    def decide() -> Sequence[Plan]:
        granted = grants(world.jobs, world.available, world.noticed)
        return [_planned(job, world, granted.get(job.name, frozenset())) for job in world.jobs]

    return decide


def _planned(job: SupervisedJob, world: _Small, granted: frozenset[Host]) -> Plan:
    facts = _facts({host: world.noticed[host] for host in job.own_hosts if host in world.noticed})
    return plan(job, replace(facts, granted=granted), _NOW, _POLICY)


def _world(count: int) -> _Small:
    running = [_running(f"running-{n}", _hosts(f"own-{n}", _WORKERS), _WORKERS // 2) for n in range(count // 2)]
    free = _hosts("free", count * (_WORKERS // 2 + _NOTICES))
    listed = [free[n * _WORKERS : (n + 1) * _WORKERS] for n in range(count // 2)]
    waiting = [_waiting(f"waiting-{n}", hosts) for n, hosts in enumerate(listed)]
    lost = [f"own-{n}-0" for n in range(0, count // 2, 10)]
    noticed = _noticed([*map(Host, lost), *free[-(_NOTICES * count - len(lost)) :]])
    return _Small([*running, *waiting], frozenset(free) - noticed.keys(), noticed)


def _facts(notices: Mapping[Host, ReclaimNotice]) -> JobFacts:
    return JobFacts(notices=notices, rank_zero=RankZero(connected=True, since=0.0))


def _hosts(prefix: str, count: int) -> list[Host]:
    return [Host(f"{prefix}-{number}") for number in range(count)]


def _running(name: str, hosts: Iterable[Host], least: int) -> SupervisedJob:
    own = frozenset(hosts)
    observed = Observed(
        launcher="launcher", instance="instance", registered_at=_NOW, hosts=own, run=1, running=True, applied=1
    )
    decision = Decision(generation=1, phase=Phase.RUNNING, reason="It runs.", run=1, hosts=own)
    return SupervisedJob(
        name=JobName(name), uid=name, spec=_spec(least, len(own)), observed=observed, decision=decision
    )


def _waiting(name: str, hosts: Iterable[Host]) -> SupervisedJob:
    own = frozenset(hosts)
    observed = Observed(launcher="launcher", instance="instance", registered_at=_NOW, hosts=own)
    decision = Decision(generation=1, phase=Phase.WAITING, reason="It waits.", waiting_since=_NOW)
    return SupervisedJob(
        name=JobName(name), uid=name, spec=_spec(_WORKERS // 2, len(own)), observed=observed, decision=decision
    )


def _spec(least: int, most: int) -> Spec:
    return Spec(
        framework=Framework.HOROVOD, min_workers=least, max_workers=most, requested_workers=most, max_wait_seconds=0.0
    )


def _noticed(hosts: Iterable[Host]) -> Mapping[Host, ReclaimNotice]:
    return {host: _notice(host) for host in hosts}


def _notice(host: Host) -> ReclaimNotice:
    return ReclaimNotice(
        source=Source("metadata"),
        subject=Subject(SubjectKind.NODE, host, f"uid-{host}"),
        episode=1,
        state=NoticeState.ACTIVE,
        first_seen=_NOW - _POLICY.window_seconds,
        deadline=_NOW + 300.0,
        announced="",
        message="",
        session=1,
        revision=1,
    )
