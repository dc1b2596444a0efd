"""Our operator for TrainingJobs beside the real training-operator, with as many jobs of as many pods."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import audit
from benchmarks.harness.cluster import PACE
from benchmarks.harness.operated_jobs import PYTORCH_JOB, TRAINING_JOB, OperatedJobs, watching_jobs
from benchmarks.harness.operators import OperatorHost, OperatorProcess
from benchmarks.machine import Usage
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import BinaryNotBuilt, BinaryProgram, NoGo, binaries, operator
from tests.testkit.controlplane.commands import Flags
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import running

T = TypeVar("T")

_OURS = "trainingjob-operator"
_THEIRS = "training-operator"
_UNLIMITED = "training-operator-unlimited"
_THREADS = 16
_PATIENCE_SECONDS = 1800.0
_SETTLE_SECONDS = 5.0
"""After the last pod runs, for writes that follow from it."""

_PODS_A_NODE = 200
"""Of the 250 that a node takes."""

_NOT_MORE = ResultTarget(at_most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLoad:
    """The jobs of each operator, the workers of a job, and the seconds for which an operator is watched at rest."""

    jobs: int
    workers: int
    rest: float
    warm: int = 4

    @property
    def pods(self) -> int:
        return self.jobs * (self.workers + 1)


FULL = OperatorLoad(jobs=500, workers=8, rest=30.0)
SHORT = OperatorLoad(jobs=6, workers=8, rest=2.0)

METHOD = f"""\
etcd, API server, scheduler, controller manager and both operators are real, each operator with an account of its own,
one after the other on the same control plane; nodes and pods are simulated by kwok, whose pods run as soon as they are
bound. Each job has a launcher (a master) and eight workers, and both operators create a Service for each pod.
TrainingJobs run under our operator, with its Lease as the chart starts it, PyTorchJobs under training-operator 1.8.1,
which is told to serve nothing else. training-operator limits itself to 20 requests a second, and has no flag for that;
*unlimited* was built with 1,000, and runs {_THREADS} threads instead of one. All jobs are submitted at once.
*Pods created* is from the first submission to the operator's last pod, *jobs run* until the status of all jobs says so.
*Writes* are the operator's own requests that change something, by the API server's audit log, until
{_SETTLE_SECONDS:g} s after the last pod runs, and *CPU* is what it used until then. *RSS* and *idle* are of the
{FULL.rest:g} s after that, in which nothing happens. The controller manager runs without its controllers of endpoints,
and everything shares two cores."""

CHANGES = """\
In the same run. The pod of one worker of each job is deleted without a grace, of all jobs at once. *Created* and *run*
are until all replacements exist and run. Our operator gives each replacement a new number and a Service, and writes the
launcher's list of hosts; training-operator creates a pod of the same name. Then all jobs are deleted; *gone* is until
none of their pods and Services is left, which the garbage collector of the controller manager deletes."""

WRITES = """\
In the same run, what the writes change: those of a start, for each job of nine pods, and those of a loss, for each lost
worker."""

RATIOS = """\
The figures of our operator, divided by those of training-operator in the same run."""


async def run(root: Path, *, short: bool) -> tuple[ScenarioOutcome, ...]:
    """Measure everything on one control plane, or nothing if there is none or no training-operator."""
    try:
        return await measure(root, SHORT if short else FULL)
    except (NoGo, BinaryNotBuilt) as reason:
        return (ScenarioOutcome(scenario="operator", title=_title(FULL), method=f"Not measured: {reason}.", rows=()),)


def _title(load: OperatorLoad) -> str:
    return f"Our operator and training-operator: {load.jobs:,} jobs with {load.pods:,} pods"


@dataclass(frozen=True, slots=True)
class _OperatedSpan:
    """The requests that an operator sent between two instants (Unix seconds), and its usage at both."""

    since: float
    until: float
    usage: tuple[Usage, Usage]
    requests: Sequence[audit.AuditedRequest] = ()

    @property
    def cpu_seconds(self) -> float:
        before, after = self.usage
        return after.cpu_seconds - before.cpu_seconds

    @property
    def writes(self) -> Counter[str]:
        return audit.kinds(each for each in self.requests if each.writes)

    @property
    def last_pod(self) -> float:
        """When the operator's last pod was created (Unix seconds)."""
        return max(each.at + each.seconds for each in self.requests if each.what == "create pods")

    def with_requests(self, sent: Sequence[audit.AuditedRequest], user: str) -> "_OperatedSpan":
        return replace(self, requests=audit.sent_by(user, audit.within(sent, self.since, self.until)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operated:
    """The measurements of one operator.

    `empty` is its usage before its first job; `running`, `replaced` and `gone` are seconds since their phases began.
    """

    title: str
    user: str
    empty: Usage
    start: _OperatedSpan
    running: float
    rest: _OperatedSpan
    loss: _OperatedSpan
    replaced: float
    replacements_running: float
    deletion: _OperatedSpan
    gone: float

    def with_requests(self, sent: Sequence[audit.AuditedRequest]) -> "_Operated":
        return replace(
            self,
            start=self.start.with_requests(sent, self.user),
            rest=self.rest.with_requests(sent, self.user),
            loss=self.loss.with_requests(sent, self.user),
            deletion=self.deletion.with_requests(sent, self.user),
        )


async def measure(root: Path, load: OperatorLoad) -> tuple[ScenarioOutcome, ...]:
    """Measure the operators at this size.

    Raises:
        NoGo: There is no control plane or no training-operator, and none can be built here.
        BinaryNotBuilt: They are not built yet.
    """
    programs, theirs, unlimited = binaries(), operator(_THEIRS), operator(_UNLIMITED)
    log = root / "audit"
    # Its programs end with this thread, so start it before anything else.
    with running(programs, root / "controlplane", _flags(log)) as plane:
        async with client(plane.cluster) as api, fresh_namespace(plane.cluster, api) as home:
            for number in range(1 + load.pods // _PODS_A_NODE):
                await home.node(f"node-{number}")
            host = OperatorHost(root, plane.cluster, api, home)
            await host.define(theirs)
            threads = [f"-controller-threads={_THREADS}"]
            cases = (
                (_OURS, TRAINING_JOB, host.ours()),
                (_THEIRS, PYTORCH_JOB, host.training_operator(_THEIRS, theirs)),
                (f"{_THEIRS}, unlimited", PYTORCH_JOB, host.training_operator(_UNLIMITED, unlimited, threads)),
            )
            measured: list[_Operated] = []
            for title, kind, operating in cases:
                namespace = f"jobs-{len(measured)}"
                async with operating as process, watching_jobs(plane.cluster, api, kind, namespace) as jobs:
                    measured.append(await _operate(title, process, jobs, load))
    sent = audit.requests(audit.log_in(log))
    return tuple(_outcomes([each.with_requests(sent) for each in measured], load))


def _flags(log: Path) -> Flags:
    controllers = "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
    return {
        **PACE,
        BinaryProgram.API_SERVER: audit.flags(log),
        BinaryProgram.CONTROLLER_MANAGER: {**PACE[BinaryProgram.CONTROLLER_MANAGER], "controllers": controllers},
    }


async def _operate(title: str, process: OperatorProcess, jobs: OperatedJobs, load: OperatorLoad) -> _Operated:
    empty = process.usage()
    # The first objects of a kind take the API server seconds.
    await _start(jobs, [f"warm-{number}" for number in range(load.warm)], load.workers)
    await _delete(jobs)
    names = [f"job-{number}" for number in range(load.jobs)]

    start, running_after = await _span(process, _start(jobs, names, load.workers), _SETTLE_SECONDS)
    rest, _ = await _span(process, asyncio.sleep(load.rest))
    loss, (replaced, replacements_running) = await _span(process, _lose(jobs, names, load.pods), _SETTLE_SECONDS)
    deletion, gone = await _span(process, _delete(jobs))
    return _Operated(
        title=title,
        user=process.user,
        empty=empty,
        start=start,
        running=running_after,
        rest=rest,
        loss=loss,
        replaced=replaced,
        replacements_running=replacements_running,
        deletion=deletion,
        gone=gone,
    )


async def _span(process: OperatorProcess, doing: Awaitable[T], settle: float = 0.0) -> tuple[_OperatedSpan, T]:
    before, since = process.usage(), time.time()
    done = await doing
    await asyncio.sleep(settle)
    return _OperatedSpan(since, time.time(), (before, process.usage())), done


async def _start(jobs: OperatedJobs, names: Sequence[str], workers: int) -> float:
    """Submit jobs, and return after how many seconds all of them ran."""
    began = time.monotonic()
    await jobs.submit(names, workers)
    await jobs.until(lambda: len(jobs.running) == len(names), "all jobs run", _PATIENCE_SECONDS)
    seconds = time.monotonic() - began
    pods = len(names) * (workers + 1)
    await jobs.until(lambda: jobs.running_pods == pods, "all pods run", _PATIENCE_SECONDS)
    return seconds


async def _lose(jobs: OperatedJobs, names: Sequence[str], pods: int) -> tuple[float, float]:
    """Delete a worker's pod of each job, and return after how many seconds all replacements existed and ran."""
    began, known = time.monotonic(), set(jobs.created)
    await jobs.lose_workers(names)
    await jobs.until(
        lambda: len(jobs.created) >= len(known) + len(names), "all workers are replaced", _PATIENCE_SECONDS
    )
    replaced = max(at for uid, at in jobs.created.items() if uid not in known) - began
    await jobs.until(lambda: jobs.running_pods == jobs.pods == pods, "all pods run again", _PATIENCE_SECONDS)
    return replaced, time.monotonic() - began


async def _delete(jobs: OperatedJobs) -> float:
    began = time.monotonic()
    await jobs.delete(_PATIENCE_SECONDS)
    return time.monotonic() - began


def _outcomes(measured: Sequence[_Operated], load: OperatorLoad) -> Iterator[ScenarioOutcome]:
    ours, *others = measured
    yield ScenarioOutcome(
        scenario="operator",
        title=_title(load),
        method=METHOD,
        rows=tuple(Row(case=each.title, figures=tuple(_start_figures(each, load))) for each in measured),
    )
    yield ScenarioOutcome(
        scenario="operator ratios",
        title="Our operator in relation to training-operator",
        method=RATIOS,
        rows=tuple(Row(case=f"to {each.title}", figures=tuple(_ratios(ours, each))) for each in others),
    )
    yield ScenarioOutcome(
        scenario="operator changes",
        title="Lost workers and deletion there",
        method=CHANGES,
        rows=tuple(Row(case=each.title, figures=tuple(_change_figures(each, load))) for each in measured),
    )
    yield ScenarioOutcome(
        scenario="operator writes",
        title="What the operators write",
        method=WRITES,
        rows=tuple(_write_rows(measured[:2], load)),
    )


def _start_figures(one: _Operated, load: OperatorLoad) -> Iterator[Figure]:
    start, rest = one.start, one.rest
    resting = rest.until - rest.since
    yield Figure(label="pods created", value=start.last_pod - start.since, unit=Unit.SECONDS)
    yield Figure(label="jobs run", value=one.running, unit=Unit.SECONDS)
    yield Figure(label="jobs a second", value=load.jobs / one.running, unit=Unit.RATIO)
    yield Figure(label="writes a pod", value=start.writes.total() / load.pods, unit=Unit.RATIO)
    yield Figure(label="without Events", value=_without_events(start) / load.pods, unit=Unit.RATIO)
    yield Figure(label="CPU", value=start.cpu_seconds, unit=Unit.SECONDS)
    yield Figure(label="RSS, no jobs", value=one.empty.resident_bytes, unit=Unit.BYTES)
    yield Figure(label="RSS", value=rest.usage[1].resident_bytes, unit=Unit.BYTES)
    yield Figure(label="peak", value=rest.usage[1].peak_bytes, unit=Unit.BYTES)
    yield Figure(label="idle CPU", value=rest.cpu_seconds / resting, unit=Unit.CORES)
    yield Figure(label="idle requests a second", value=len(rest.requests) / resting, unit=Unit.RATIO)


def _ratios(ours: _Operated, theirs: _Operated) -> Iterator[Figure]:
    def ratio(label: str, value: float, other: float, target: ResultTarget | None = None) -> Figure:
        return Figure(label=label, value=value / other, unit=Unit.RATIO, target=target)

    yield ratio("writes", ours.start.writes.total(), theirs.start.writes.total(), _NOT_MORE)
    yield ratio("without Events", _without_events(ours.start), _without_events(theirs.start))
    memory = [each.rest.usage[1].resident_bytes for each in (ours, theirs)]
    yield ratio("RSS", memory[0], memory[1], _NOT_MORE)
    yield ratio("CPU", ours.start.cpu_seconds, theirs.start.cpu_seconds)
    yield ratio("jobs run", ours.running, theirs.running)
    yield ratio("replaced", ours.replaced, theirs.replaced)


def _change_figures(one: _Operated, load: OperatorLoad) -> Iterator[Figure]:
    yield Figure(label="created", value=one.replaced, unit=Unit.SECONDS)
    yield Figure(label="a second", value=load.jobs / one.replaced, unit=Unit.RATIO)
    yield Figure(label="run", value=one.replacements_running, unit=Unit.SECONDS)
    yield Figure(label="writes a loss", value=one.loss.writes.total() / load.jobs, unit=Unit.RATIO)
    yield Figure(label="CPU", value=one.loss.cpu_seconds, unit=Unit.SECONDS)
    yield Figure(label="gone", value=one.gone, unit=Unit.SECONDS)
    yield Figure(label="writes, deletion", value=one.deletion.writes.total(), unit=Unit.COUNT)
    yield Figure(label="CPU, deletion", value=one.deletion.cpu_seconds, unit=Unit.SECONDS)


def _write_rows(measured: Sequence[_Operated], load: OperatorLoad) -> Iterator[Row]:
    whats = {what for one in measured for span in (one.start, one.loss) for what in span.writes}
    for what in sorted(whats):
        figures = []
        for one in measured:
            for label, span in (("a job", one.start), ("a loss", one.loss)):
                value = span.writes[what] / load.jobs
                figures.append(Figure(label=f"{one.title}: {label}", value=value, unit=Unit.RATIO))
        yield Row(case=what, figures=tuple(figures))


def _without_events(span: _OperatedSpan) -> int:
    return sum(count for what, count in span.writes.items() if not what.endswith(" events"))
