"""Metrics take as much room after 100,000 notices as after the first tenth of them."""

import gc
import sys
from collections.abc import Iterator
from dataclasses import replace

from prometheus_client.openmetrics.exposition import generate_latest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.capacity import Machine
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.notice import NoticeState, ReclaimNotice, Subject, SubjectKind
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind
from supervisor.ingest.agent_registry import AgentRegistry, AgentState, SourceState
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged
from supervisor.observability.metrics.wiring import ClusterSources, Metrics
from supervisor.refusals import Code, Refusals, Wire
from supervisor.store.interface import Snapshot
from tests.supervisor.decide.decide_builders import (
    T0,
    answered,
    decide,
    notice,
    noticed,
    obeyed,
    running_job,
    seeing,
    spec,
)
from tests.supervisor.observability.metrics.observability_metrics import live

NODES = 10_000
NOTICES = 100_000
SOURCES = [Source(name) for name in ("aliyun", "event", "node-condition", "kubernetes")]
ALIYUN = Source("aliyun")


def announced(number: int) -> ReclaimNotice:
    """Each on another machine: ten to each node, one after the other."""
    node = f"node-{number % NODES}"
    about = Subject(SubjectKind.NODE, node, f"machine-{number}")
    seen = T0 + number
    return replace(notice(1), source=SOURCES[number % 4], subject=about, first_seen=seen, deadline=seen + 120)


def lives(number: int) -> Iterator[Change]:
    """A notice comes and ends; each hundredth stops a job that is deleted afterwards."""
    first = announced(number)
    yield NoticeChanged(None, first, first.first_seen)
    end = (NoticeState.GONE, NoticeState.WITHDRAWN, NoticeState.EXPIRED)[number % 3]
    yield NoticeChanged(first, replace(first, state=end), first.first_seen + 120)
    if number % 100 == 0:
        yield from stops(number)


def stops(number: int) -> Iterator[Change]:
    job = running_job(spec(6, 6), name=f"job-{number}")
    stopped = decide(job, seeing(noticed(notice(6))), 1.0).job
    saved = answered(stopped)
    suspended = decide(saved, seeing(noticed(notice(6))), 2.0).job
    yield JobChanged(job, stopped, T0 + 1)
    yield JobChanged(stopped, saved, T0 + 2)
    yield JobChanged(saved, suspended, T0 + 2)
    yield JobChanged(suspended, obeyed(suspended), T0 + 3)
    yield JobForgotten(obeyed(suspended), T0 + 4)


class Soak:
    """A leader's metrics with 10,000 agents, told of notices."""

    def __init__(self) -> None:
        clock, refusals = Clock(), Refusals()
        metrics = Metrics("0", refusals, Bulkhead(Clock()), clock)
        self.leader = metrics.for_leader(lambda: True, ClusterSources(gpus=lambda _: 8.0))
        self.registry = metrics.registry
        seen = replace(live(Snapshot, clock), machine=lambda node: Machine(zone=node[-1], instance_type=node))
        populate(seen.agents)
        self.listeners = self.leader.attach(seen)
        refusals.add(Wire.GRPC, Code.OLDER_REVISION, "late")

    def run(self, numbers: range) -> None:
        for number in numbers:
            for change in lives(number):
                for listener in self.listeners:
                    listener.on_change(change)
            stop = ProcessDirective(kind=ProcessDirectiveKind.STOP, run=1, generation=6, reason="", host=Host("n6"))
            self.leader.on_directives_sent(JobName(f"job-{number - number % 100}"), [stop])
            self.leader.on_store_write("put_notice", 0.001, durable=True)
            if number % 100 == 99:
                for listener in self.listeners:
                    listener.on_change(JobForgotten(running_job(name=f"job-{number - 99}"), T0))

    def samples(self) -> int:
        return sum(len(family.samples) for family in self.registry.collect())

    def answer(self) -> int:
        return len(generate_latest(self.registry))  # type: ignore[no-untyped-call]  # It has no annotations.


def populate(agents: AgentRegistry) -> None:
    for number in range(NODES):
        view = AgentState(
            node=Host(f"node-{number}"),
            uid=f"machine-{number}",
            session=1,
            connected=True,
            sources={ALIYUN: SourceState.CLEAR},
        )
        agents.connect(view, object())


def kept() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def test_neither_memory_nor_samples_grow_with_what_happens() -> None:
    """Over 100,000 notices on 10,000 nodes of 10,000 kinds; what is answered stays as long as it was."""
    soak = Soak()
    soak.run(range(NODES))
    samples, size, early = soak.samples(), soak.answer(), kept()
    soak.run(range(NODES, NOTICES))
    assert soak.samples() == samples < 2500
    assert soak.answer() < size * 1.1
    assert kept() - early < 1000
    received = [
        soak.registry.get_sample_value("job_supervisor_notices_total", {"source": source, "outcome": "received"})
        for source in SOURCES
    ]
    assert received == [NOTICES / 4] * 4
