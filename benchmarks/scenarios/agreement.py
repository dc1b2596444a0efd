"""How long 1,024 ranks take to agree on a step, and how long that blocks them, beside a barrier of all ranks."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.clients import agreement, barrier
from benchmarks.clients.lockstep import Lockstep
from benchmarks.clients.ranks import RanksRun
from benchmarks.clients.speech import SpokenService
from benchmarks.harness.client import A, ClientProcess
from benchmarks.harness.fleet import AgentFleet, FleetSize, fleet
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit
from benchmarks.summary import summarize

_STEP_SECONDS = 0.25
_PROMPT_SECONDS = 0.1
_LATE_SECONDS = 1.0
_CLIENTS = 2
_WAIT_SECONDS = 60.0
_RANKS_PER_HOST = 8

METHOD = """\
One job in lockstep, whose ranks finish a step every 250 ms. A node is noticed, so that the job has to stop. The
supervisor is real, a process of its own with its own store and tokens. The ranks are protocol clients in two other
processes on the same cores, with the SDK's rules. The eight ranks of a pod share a stream and a connection for their
messages, as with the SDK's relay. *No relays* is for comparison: each rank has a stream of its own, and a connection
for each message. *Proposal → all committed* is from the first rank's receipt of the step that was then committed to
the receipt of its commit. The alternative is what frameworks do: all ranks block at their next step, publish their
number of finished steps to a key-value store over TCP and wait for each other; the step is the largest number plus one.
*Asked → all know* is from the first rank that is asked, there from the announcement, until each knows the step.
*Blocked* is how long each rank stands still for that: with the supervisor only for a commit that comes after the step
itself, with the barrier from its next step on. In the second case the messages of one rank take a second, while it
trains on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementCase:
    """So many ranks, and how late the messages of one of them are."""

    name: str
    ranks: int
    late_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredAgreement:
    """For each rank, in seconds; `committed` is None for the barrier."""

    known: Sequence[float]
    blocked: Sequence[float]
    committed: Sequence[float] | None = None


class SplitError(AssertionError):
    """The ranks do not all know the same step."""


def cases(*, short: bool) -> list[AgreementCase]:
    ranks = 64 if short else 1024
    return [
        AgreementCase(name=f"{ranks:,} ranks", ranks=ranks),
        AgreementCase(name=f"{ranks:,} ranks, one late", ranks=ranks, late_seconds=_LATE_SECONDS),
    ]


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    """Measure every way in each case."""
    rows: list[Row] = []
    for number, case in enumerate(cases(short=short)):
        rows += await measure(root / str(number), case)
    return ScenarioOutcome(scenario="agreement", title="An agreed step", method=METHOD, rows=tuple(rows))


async def measure(root: Path, case: AgreementCase) -> list[Row]:
    """Measure one case: with the supervisor and a relay in each pod, without relays, and with a barrier."""
    relayed = await _supervisor(root / "relays", case, relays=True)
    alone = await _supervisor(root / "alone", case, relays=False)
    target = None if case.late_seconds else ResultTarget(at_most=_STEP_SECONDS + _PROMPT_SECONDS)
    return [
        _row(f"{case.name}: supervisor", relayed, target),
        _row(f"{case.name}: supervisor, no relays", alone),
        _row(f"{case.name}: barrier", await _barrier(case)),
    ]


async def _supervisor(root: Path, case: AgreementCase, *, relays: bool) -> _MeasuredAgreement:
    nodes = case.ranks // _RANKS_PER_HOST
    size = FleetSize(nodes=nodes, streams=case.ranks, jobs=1, framework="torchrun")
    async with fleet(root, size, tls=False) as peers, _started("agreement", agreement.Agreed) as clients:
        await peers.start_jobs()
        clock = Lockstep(time.monotonic(), _STEP_SECONDS)
        for client, join in zip(clients, _joins(peers, case, clock, relays=relays), strict=True):
            await client.request(join)
        for client in clients:
            client.send(agreement.Agree(_WAIT_SECONDS))
        await peers.notice([peers.jobs[0].shape.hosts[0]], 0.0)
        return _agreed([await client.receive() for client in clients], clock)


def _joins(peers: AgentFleet, case: AgreementCase, clock: Lockstep, *, relays: bool) -> list[agreement.JoinAgreement]:
    job, address, each = peers.jobs[0], peers.server.endpoints.http_address, case.ranks // _CLIENTS
    first = agreement.JoinAgreement(
        service=SpokenService(address.host, address.port, job.token),
        run=RanksRun(job.shape.name, list(job.shape.hosts), case.ranks, clock),
        first=0,
        count=each,
        relays=relays,
        late=1 if case.late_seconds else 0,
        late_seconds=case.late_seconds,
    )
    return [msgspec.structs.replace(first, first=number * each) for number in range(_CLIENTS)]


def _agreed(answers: Sequence[agreement.Agreed], clock: Lockstep) -> _MeasuredAgreement:
    steps = {step for answer in answers for step in answer.steps}
    if len(steps) != 1 or any(answer.unsettled for answer in answers):
        raise SplitError(f"steps {sorted(steps)}, and {sum(answer.unsettled for answer in answers)} ranks without one")
    due = clock.finished_at(steps.pop())
    asked = min(at for answer in answers for at in answer.asked_at)
    proposed = min(at for answer in answers for at in answer.proposed_at)
    committed = [at for answer in answers for at in answer.committed_at]
    return _MeasuredAgreement(
        known=[at - asked for at in committed],
        committed=[at - proposed for at in committed],
        blocked=[max(0.0, at - due) for at in committed],
    )


async def _barrier(case: AgreementCase) -> _MeasuredAgreement:
    clock = Lockstep(time.monotonic(), _STEP_SECONDS)
    async with (
        _started("barrier", barrier.Listening, "store", count=1) as (store,),
        _started("barrier", barrier.Met, "ranks") as clients,
    ):
        port = (await store.request(barrier.Listen(case.ranks))).port
        for number, client in enumerate(clients):
            late = 1 if case.late_seconds and number == 0 else 0
            await client.request(barrier.JoinBarrier(port, case.ranks // _CLIENTS, clock, late, case.late_seconds))
        for client in clients:
            client.send(barrier.Meet())
        announced_at = (await store.request(barrier.Announce())).announced_at
        met = [await client.receive() for client in clients]
    if len({step for each in met for step in each.steps}) != 1:
        raise SplitError("the barrier has told several steps")
    return _MeasuredAgreement(
        known=[at - announced_at for each in met for at in each.known_at],
        blocked=[seconds for each in met for seconds in each.blocked],
    )


@asynccontextmanager
async def _started(
    name: str, answers: type[A], *arguments: str, count: int = _CLIENTS
) -> AsyncIterator[list[ClientProcess[A]]]:
    clients = [await ClientProcess.start(name, answers, arguments) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            await client.end()


def _row(name: str, measured: _MeasuredAgreement, prompt: ResultTarget | None = None) -> Row:
    known, blocked = summarize(measured.known), summarize(measured.blocked)
    figures = [
        Figure(label="asked → all know p50", value=known.p50, unit=Unit.SECONDS),
        Figure(label="asked → all know max", value=known.maximum, unit=Unit.SECONDS),
    ]
    unblocked = None
    if measured.committed is not None:
        committed, unblocked = summarize(measured.committed), ResultTarget(at_most=0.0)
        figures += [
            Figure(label="proposal → all committed p50", value=committed.p50, unit=Unit.SECONDS),
            Figure(label="proposal → all committed max", value=committed.maximum, unit=Unit.SECONDS, target=prompt),
        ]
    figures += [
        Figure(label="blocked p50", value=blocked.p50, unit=Unit.SECONDS),
        Figure(label="blocked max", value=blocked.maximum, unit=Unit.SECONDS, target=unblocked),
    ]
    return Row(case=name, figures=tuple(figures))
