"""Which suspended jobs of a cluster may resume, which running ones grow, and at what size: one function over all."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from supervisor.decide.fit import NODE_NAME
from supervisor.decide.grant import Grant
from supervisor.decide.ledger import Ledger, scarce
from supervisor.decide.policy import Policy
from supervisor.decide.probe import probe_at, probe_size
from supervisor.domain.capacity import Ask, Demand, NodeRoom, Operator, Requirement
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob

_PLAIN = "cpu"
"""Stands for what every node has."""

_NUMBER = re.compile(r"(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Applicant:
    """A suspended job that could resume, and what its pods ask for."""

    job: SupervisedJob
    ask: Ask


@dataclass(frozen=True, slots=True)
class Promise:
    """A job that is resuming or growing: so many workers, and perhaps its launcher, are not bound to a node yet."""

    job: SupervisedJob
    ask: Ask
    workers: int
    launcher: bool

    @property
    def pending(self) -> bool:
        """Whether any pod of it may still take room."""
        return self.job.decision.probing or self.launcher or self.workers > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grower:
    """A job that runs and could have so many workers `more`; `nodes` are those that its own are on."""

    job: SupervisedJob
    ask: Ask
    more: int
    nodes: frozenset[Host] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The jobs that may grow, and what those ask for whose pods their operator has made and that do not run yet."""

    growers: Sequence[Grower] = ()
    starting: Sequence[Ask] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """`usable` may be counted on; `doomed` will be reclaimed, and are what the scheduler may bind pods to even so."""

    usable: Sequence[NodeRoom]
    doomed: Sequence[NodeRoom] = ()


def share(
    applicants: Collection[Applicant],
    promises: Collection[Promise],
    nodes: Nodes,
    policy: Policy,
    running: Running = Running(),
) -> Mapping[JobName, Grant]:
    """What each job may do; one that may do nothing and has nothing to say is left out.

    The longest waiting comes first, each gets all it needs or nothing, and what was promised to a job that is resuming
    or growing is kept for it. A job waits, whatever room there is, while a doomed node could take one of its pods.
    Growing is worth less than starting: nobody grows by a kind of capacity that a job waits for or is about to get.
    """
    usable, doomed = _ledger(nodes.usable, promises), Ledger(nodes.doomed)
    granted: dict[JobName, Grant] = {}
    unmet: list[Applicant] = []
    busy = {name for each in promises if each.pending for name in _kind(each.ask)}
    for each in sorted(applicants, key=_turn):
        spec = each.job.spec
        if _could_take_one(doomed, each.ask):
            granted[each.job.name] = Grant(held_up=True)
        elif count := usable.take(each.ask, spec.start_workers, min(spec.requested_workers, _hosts(each.job))):
            granted[each.job.name] = Grant(first_hosts(each.job, count))
            busy |= _kind(each.ask)
        else:
            unmet.append(each)
    wanted = {name for ask in (*(each.ask for each in applicants), *running.starting) for name in _kind(ask)}
    return {**granted, **_probes(unmet, busy, policy), **_growths(running.growers, busy | wanted, usable, doomed)}


def first_hosts(job: SupervisedJob, count: int) -> frozenset[Host]:
    """The hosts that a run of that many workers has: an operator counts its workers from 0."""
    return frozenset(sorted(job.observed.hosts, key=_naturally)[:count])


def _ledger(usable: Iterable[NodeRoom], promises: Iterable[Promise]) -> Ledger:
    ledger = Ledger(usable)
    for promise in sorted(promises, key=lambda each: each.job.name):
        ledger.hold(promise.ask.worker, promise.workers)
        if promise.launcher and promise.ask.launcher is not None:
            ledger.hold(promise.ask.launcher, 1)
    return ledger


def _could_take_one(doomed: Ledger, ask: Ask) -> bool:
    return doomed.has_room(ask.worker) or (ask.launcher is not None and doomed.has_room(ask.launcher))


def _probes(unmet: Iterable[Applicant], busy: Collection[str], policy: Policy) -> Mapping[JobName, Grant]:
    """One job at a time tries for capacity of a kind: several would each get some of it and none enough.

    And none while another one is about to start on what there is, as pods that wait take it from whoever it was for.
    """
    if not policy.probe_seconds:
        return {}
    taken = set(busy)
    offered: dict[JobName, Grant] = {}
    for each in sorted(unmet, key=lambda each: (probe_at(each.job.decision, policy), each.job.name)):
        kind, size = _kind(each.ask), probe_size(each.job)
        if taken.isdisjoint(kind) and size <= _hosts(each.job):
            taken |= kind
            offered[each.job.name] = Grant(first_hosts(each.job, size), probe=True)
    return offered


def _growths(
    growers: Iterable[Grower], wanted: Collection[str], usable: Ledger, doomed: Ledger
) -> Mapping[JobName, Grant]:
    """As much as there is of what is left: each host that a job has again is worth having."""
    granted: dict[JobName, Grant] = {}
    for each in sorted(growers, key=lambda each: each.job.name):
        worker = _elsewhere(each.ask.worker, each.nodes)
        free = _kind(each.ask).isdisjoint(wanted) and not doomed.has_room(worker)
        if free and (count := usable.take(Ask(worker=worker), 1, each.more)):
            granted[each.job.name] = Grant(more=count)
    return granted


def _elsewhere(demand: Demand, nodes: frozenset[Host]) -> Demand:
    """The same where no other pod of the job is, if it asks for that."""
    if not demand.apart or not nodes:
        return demand
    other = Requirement(key=NODE_NAME, operator=Operator.NOT_IN, values=nodes)
    return replace(demand, affinity=tuple((*term, other) for term in demand.affinity or ((),)))


def _kind(ask: Ask) -> frozenset[str]:
    """What the jobs compete for: a scarce resource, whatever nodes it is on."""
    return scarce(ask.worker) or frozenset({_PLAIN})


def _turn(each: Applicant) -> tuple[float, str]:
    return (each.job.decision.waiting_since or 0.0, each.job.name)


def _hosts(job: SupervisedJob) -> int:
    return len(job.observed.hosts)


def _naturally(host: Host) -> list[tuple[bool, int, str]]:
    """worker-2 before worker-10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _NUMBER.split(host)]
