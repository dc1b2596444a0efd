"""A supervisor on a real cluster: idle, while two fifths of its nodes are reclaimed, and when its leader is killed."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients.agents import NoticeSent
from benchmarks.harness import audit
from benchmarks.harness.cluster import BenchmarkCluster, BenchmarkJob, cluster
from benchmarks.harness.job_watch import JobWatch, watching
from benchmarks.job_history import decisions, exclusion_changes, first_delay, has_exclusions, is_stopping
from benchmarks.machine import Usage
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit, figures
from benchmarks.summary import summarize
from tests.testkit.controlplane.binaries import BinaryNotBuilt, NoGo

_WINDOW_SECONDS = 1.25
_PATIENCE_SECONDS = 30.0
_LEAD_SECONDS = 600.0
_SETTLE_SECONDS = 3.0
_WHY_LATE = """a decision waits for its own write, and the API server, which shares the cores with everything else,
takes as long for a write as *write* says."""

METHOD = """\
etcd, API server, scheduler, controller manager and the supervisor are real, and the supervisor has the account and
role that it has on a cluster. Nodes are simulated by kwok, TrainingJobs by the stand-in for et-operator at the real
one's pace. Their pods only run the command that excludes hosts. Agents, and eight processes of each job, are protocol
clients. The job of 400 workers and 50 of 72 have nodes of their own, so that the losses of a job are one group: 20
nodes of the big one and four of 45 others, one after the other. Ten of these cannot continue and are suspended.
*Durable* is from an agent's notice to its acknowledgement. *STOP* and *exclusions* are from a group's first notice to
the decision in the job's resource, as a watcher sees it. If the job continues, they include the window of 1.25 s for
the rest of the group. *Writes a notice* counts requests about notices, *requests* counts all. *Write* is the API
server's time for one, by its audit log. Everything shares two cores."""

STARTS = """\
In the same run, without agents and with them. *Synced* is from the start of the process until it has read all pods,
nodes and jobs. *Serves* is until agents can connect; on a cluster that never had a leader, this includes a wait of
three seconds for one. *Decided* is until all jobs are in their resources. In the last row the leader is killed with
SIGKILL while another supervisor stands by. *Serves* and *decided* count from then, the latter until the STOP of a job
that is noticed at that moment, so it includes the agent's pause before it reconnects."""

REQUESTS = """\
In the same run, from the API server's audit log. A watch counts once, when it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """The size of the scenario.

    The big job and `hit` small ones lose nodes; `stopped` of the small ones must stop. `gpus` is the number of GPUs and
    workers per node, `streams` the number per job. The notices are spread over `over` seconds; before them the
    supervisor is observed for `idle` seconds.
    """

    gpus: int
    big: int
    big_lost: int
    small: int
    small_nodes: int
    small_lost: int
    hit: int
    stopped: int
    streams: int
    over: float
    idle: float

    @property
    def title(self) -> str:
        nodes = self.big + self.small * self.small_nodes
        return f"On a cluster: {nodes:,} nodes, {self.small + 1} jobs with {nodes * self.gpus:,} workers"

    def jobs(self) -> list[BenchmarkJob]:
        """Return the big job, then those that stop, those that shrink, and the rest."""
        return [
            self._job("big", self.big, self.big_lost, stops=False),
            *(
                self._job(
                    f"small-{number}",
                    self.small_nodes,
                    self.small_lost,
                    stops=number < self.stopped or number == self.small - 1,
                )
                for number in range(self.small)
            ),
        ]

    def reclaimed(self, jobs: Sequence[BenchmarkJob]) -> list[tuple[BenchmarkJob, tuple[str, ...]]]:
        """Return the jobs that lose nodes, with these nodes."""
        small = [(job, job.nodes[: self.small_lost]) for job in jobs[1 : 1 + self.hit]]
        return [(jobs[0], jobs[0].nodes[: self.big_lost]), *small]

    def stopping(self, jobs: Sequence[BenchmarkJob]) -> Sequence[BenchmarkJob]:
        """Return the jobs that must stop."""
        return jobs[1 : 1 + self.stopped]

    def _job(self, name: str, nodes: int, lost: int, *, stops: bool) -> BenchmarkJob:
        workers = nodes * self.gpus
        least = workers if stops else workers - lost * self.gpus
        return BenchmarkJob(
            name=name, nodes=tuple(f"{name}-node-{number}" for number in range(nodes)), workers=workers, least=least
        )


FULL = ClusterSize(
    gpus=8,
    big=50,
    big_lost=20,
    small=50,
    small_nodes=9,
    small_lost=4,
    hit=45,
    stopped=10,
    streams=8,
    over=10.0,
    idle=60.0,
)
SHORT = ClusterSize(
    gpus=2, big=4, big_lost=2, small=4, small_nodes=9, small_lost=4, hit=3, stopped=1, streams=2, over=2.0, idle=2.0
)


async def run(root: Path, *, short: bool) -> tuple[ScenarioOutcome, ...]:
    """Measure everything on one control plane, or nothing if there is none."""
    try:
        return await measure(root, SHORT if short else FULL)
    except (NoGo, BinaryNotBuilt) as reason:
        return (ScenarioOutcome(scenario="cluster", title="On a cluster", method=f"Not measured: {reason}.", rows=()),)


async def measure(root: Path, size: ClusterSize) -> tuple[ScenarioOutcome, ...]:
    """Measure everything at this size.

    Raises:
        NoGo: There is no control plane, and none can be built here.
        BinaryNotBuilt: It is not built yet.
    """
    async with cluster(root, size.jobs(), size.gpus) as world:
        return await _measured(_Setup(world, JobWatch(world.api), size))


@dataclass(frozen=True, slots=True)
class _Setup:
    world: BenchmarkCluster
    job_watch: JobWatch
    size: ClusterSize


@dataclass(frozen=True, slots=True)
class _Span:
    """The time between two instants in Unix seconds. `usage` is the supervisor's usage at both."""

    since: float
    until: float
    usage: tuple[Usage, Usage]

    @property
    def seconds(self) -> float:
        return self.until - self.since

    @property
    def figures(self) -> tuple[Figure, ...]:
        before, after = self.usage
        cores = (after.cpu_seconds - before.cpu_seconds) / self.seconds
        return (
            Figure(label="server CPU", value=cores, unit=Unit.CORES),
            Figure(label="server RSS", value=after.resident_bytes, unit=Unit.BYTES),
        )


@dataclass(frozen=True, slots=True)
class _Wave:
    """The reclaimed nodes and the result. `began` and `ended` are CLOCK_MONOTONIC."""

    began: float
    ended: float
    span: _Span
    sent: Sequence[NoticeSent]


async def _measured(setup: _Setup) -> tuple[ScenarioOutcome, ...]:
    await setup.world.start_jobs()
    async with watching(setup.job_watch):
        starts = await _measure_starts(setup)
        idle = await _measure_span(setup, asyncio.sleep(setup.size.idle))
        wave = await _measure_wave(setup)
        killed = await _measure_failover(setup)
    sent = audit.requests(audit.log_in(setup.world.root / "audit"))
    at_rest = audit.kinds(audit.within(sent, idle.since, idle.until))
    asked_then = audit.within(sent, wave.span.since, wave.span.until)
    busy = audit.kinds(asked_then)
    load = (_idle_row(idle, at_rest), _wave_row(setup, wave, asked_then))
    asked = tuple(_request_rows(idle, at_rest, busy, len(wave.sent)))
    return (
        ScenarioOutcome(scenario="cluster", title=setup.size.title, method=METHOD, rows=load),
        ScenarioOutcome(
            scenario="cluster starts", title="Start and failover there", method=STARTS, rows=(*starts, killed)
        ),
        ScenarioOutcome(
            scenario="cluster requests", title="What is asked of its API server", method=REQUESTS, rows=asked
        ),
    )


async def _measure_starts(setup: _Setup) -> tuple[Row, Row]:
    """Measure a start with new jobs and no former leader, and a restart."""
    world = setup.world
    first = await _measure_start(setup, "first start")
    await world.server.stop()
    again = await _measure_start(setup, "started again")
    await world.start_agents()
    await world.start_processes(setup.job_watch.uids, setup.size.streams)
    await asyncio.sleep(_SETTLE_SECONDS)
    return first, again


async def _measure_start(setup: _Setup, case: str) -> Row:
    server = setup.world.server
    began = time.monotonic()
    server.launch()
    await server.until_standby()
    synced = time.monotonic()
    await server.until_serving()
    serving = time.monotonic()
    await setup.job_watch.until({job.known_as: "Running" for job in setup.world.jobs}, _PATIENCE_SECONDS)
    known = time.monotonic()
    used = server.usage()
    return Row(
        case=case,
        figures=(
            Figure(label="synced after", value=synced - began, unit=Unit.SECONDS),
            Figure(label="serves after", value=serving - began, unit=Unit.SECONDS),
            Figure(label="decided after", value=known - began, unit=Unit.SECONDS),
            Figure(label="server CPU time", value=used.cpu_seconds, unit=Unit.SECONDS),
            Figure(label="server RSS", value=used.resident_bytes, unit=Unit.BYTES),
        ),
    )


async def _measure_span(setup: _Setup, doing: Awaitable[object]) -> _Span:
    before, since = setup.world.server.usage(), time.time()
    await doing
    return _Span(since, time.time(), (before, setup.world.server.usage()))


async def _measure_wave(setup: _Setup) -> _Wave:
    world, size = setup.world, setup.size
    began = time.monotonic()
    sent: list[NoticeSent] = []

    async def reclaim() -> None:
        nodes = [node for _, lost in size.reclaimed(world.jobs) for node in lost]
        world.notice(nodes, size.over, _LEAD_SECONDS)
        async with asyncio.TaskGroup() as group:
            for job in size.stopping(world.jobs):
                group.create_task(_leave(setup, job))
        sent.extend(await world.until_durable())
        await setup.job_watch.until({job.known_as: "Suspended" for job in size.stopping(world.jobs)}, _PATIENCE_SECONDS)
        await asyncio.sleep(_SETTLE_SECONDS)

    span = await _measure_span(setup, reclaim())
    return _Wave(began, time.monotonic(), span, sent)


async def _leave(setup: _Setup, job: BenchmarkJob) -> None:
    """Rank 0 obeys at once, like one whose checkpoint takes no time."""
    await setup.job_watch.until({job.known_as: "Stopping"}, _PATIENCE_SECONDS + setup.size.over)
    decided = setup.job_watch.present[job.known_as]
    await setup.world.acknowledge(job, setup.job_watch.uids[job.known_as], decided.generation)


async def _measure_failover(setup: _Setup) -> Row:
    """Measure a failover during which a job that must stop is noticed."""
    world, job = setup.world, setup.world.jobs[-1]
    second = await world.start_second()
    began = time.monotonic()
    await world.server.kill()
    world.notice(job.nodes[:1], 0.0, _LEAD_SECONDS)
    await second.until_serving()
    serving = time.monotonic()
    await world.until_durable()
    await setup.job_watch.until({job.known_as: "Stopping"}, _PATIENCE_SECONDS)
    decided = first_delay(setup.job_watch.snapshots, job.known_as, began, is_stopping)
    return Row(
        case="its leader is killed",
        figures=(
            Figure(label="serves after", value=serving - began, unit=Unit.SECONDS, target=ResultTarget(at_most=5.0)),
            Figure(label="decided after", value=decided, unit=Unit.SECONDS, target=ResultTarget(at_most=5.0)),
            Figure(label="server RSS", value=second.usage().resident_bytes, unit=Unit.BYTES),
        ),
    )


def _idle_row(span: _Span, sent: Counter[str]) -> Row:
    rate = Figure(label="requests a second", value=sent.total() / span.seconds, unit=Unit.RATIO)
    return Row(case="idle", figures=(*span.figures, rate))


def _wave_row(setup: _Setup, wave: _Wave, asked: Sequence[audit.AuditedRequest]) -> Row:
    size, jobs, snapshots = setup.size, setup.world.jobs, setup.job_watch.snapshots
    at = {each.node: each.at for each in wave.sent}
    first = {job.known_as: min(at[node] for node in lost) for job, lost in size.reclaimed(jobs)}
    stopping = {job.known_as for job in size.stopping(jobs)}
    stops = [first_delay(snapshots, job, first[job], is_stopping) for job in stopping]
    shrinks = [first_delay(snapshots, job, first[job], has_exclusions) for job in first.keys() - stopping]
    decided = [decisions(snapshots, job, wave.began, wave.ended) for job in first]
    others = [job.known_as for job in jobs if job.known_as not in first]
    changes = [exclusion_changes(snapshots, job, wave.began, wave.ended) for job in first.keys() - stopping]
    notices = len(wave.sent)
    return Row(
        case=f"{notices} notices in {size.over:g} s",
        figures=(
            *wave.span.figures,
            Figure(label="requests a second", value=len(asked) / wave.span.seconds, unit=Unit.RATIO),
            Figure(label="writes a notice", value=_about_notices(asked) / notices, unit=Unit.RATIO),
            *figures("write", summarize(each.seconds for each in asked if each.writes)),
            *figures("durable", summarize(each.acknowledged_at - each.at for each in wave.sent)),
            *figures("STOP", summarize(stops)),
            *figures("exclusions", summarize(shrinks), p99=ResultTarget(at_most=_WINDOW_SECONDS + 0.1, why=_WHY_LATE)),
            Figure(label="decisions a job, max", value=max(decided), unit=Unit.COUNT),
            Figure(
                label="changes of exclusions a job, max",
                value=max(changes),
                unit=Unit.COUNT,
                target=ResultTarget(at_most=1),
            ),
            Figure(
                label="decisions about others",
                value=sum(decisions(snapshots, job, wave.began, wave.ended) for job in others),
                unit=Unit.COUNT,
                target=ResultTarget(at_most=0),
            ),
        ),
    )


def _request_rows(idle: _Span, at_rest: Counter[str], busy: Counter[str], notices: int) -> Iterator[Row]:
    for what in sorted(at_rest.keys() | busy.keys()):
        yield Row(
            case=what,
            figures=(
                Figure(label="idle, a second", value=at_rest[what] / idle.seconds, unit=Unit.RATIO),
                Figure(label="wave", value=busy[what], unit=Unit.COUNT),
                Figure(label="wave, a notice", value=busy[what] / notices, unit=Unit.RATIO),
            ),
        )


def _about_notices(asked: Iterable[audit.AuditedRequest]) -> int:
    return sum(each.writes and "reclaimnotices" in each.what for each in asked)
