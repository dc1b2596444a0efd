"""The cost for an honest job of another launcher token that uses all its limits."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import tenant
from benchmarks.harness.client import ClientProcess
from benchmarks.harness.fleet import AgentFleet, FleetSize, fleet
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit
from benchmarks.summary import Summary, summarize

_MAX_RATIO = 1.2
_POLL_SECONDS = 0.001
_TOKEN = "crowd"  # noqa: S105 - a name

METHOD = """\
An honest job of one launcher token loses one node after another. *Order* is from the agent's notice to the receipt of
the order that excludes the node, which includes the window of 1.25 s that collects a group. Half of the nodes are
reclaimed while there is no other job, the other half while another launcher token, in a process of its own, holds as
many jobs and hosts as the supervisor accepts. Ratios are to the first half of the same row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantsLoad:
    """The jobs that the other token registers."""

    case: str
    jobs: int
    hosts: int
    running: bool


def loads(*, short: bool) -> list[TenantsLoad]:
    """Return many small jobs, few large ones, and large ones that report that they run."""
    large = 1000 if short else 10_000
    return [
        TenantsLoad(case="many jobs that wait", jobs=100 if short else 1001, hosts=20, running=False),
        TenantsLoad(case="large jobs that wait", jobs=5 if short else 175, hosts=large, running=False),
        TenantsLoad(case="large jobs that run", jobs=2 if short else 20, hosts=large, running=True),
    ]


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    rounds = 2 if short else 10
    rows = [await _measure(root / str(number), load, rounds) for number, load in enumerate(loads(short=short))]
    title = "Another token that holds all it may"
    return ScenarioOutcome(scenario="tenants", title=title, method=METHOD, rows=tuple(rows))


async def _measure(root: Path, load: TenantsLoad, rounds: int) -> Row:
    size = FleetSize(nodes=2 * rounds + 1, streams=0, jobs=1, spare=2 * rounds)
    async with fleet(root, size, tls=False) as peers:
        await peers.start_jobs()
        nodes = size.node_names()
        alone = summarize(await _orders(peers, nodes[:rounds]))
        other = await ClientProcess.start("tenant", tenant.TenantAnswer)
        try:
            token, url = peers.server.tokens.launcher(_TOKEN), peers.server.endpoints.http
            setup = tenant.TenantSetup(url, None, token, load.jobs, load.hosts, load.running)
            taken = (await other.request(setup)).accepted
            beside = summarize(await _orders(peers, nodes[rounds : 2 * rounds]))
            resident = peers.server.usage().resident_bytes
        finally:
            await other.kill()
    return Row(case=load.case, figures=_figures(alone, beside, taken, resident))


def _figures(alone: Summary, beside: Summary, taken: int, resident: int) -> tuple[Figure, ...]:
    ratio = beside.p50 / alone.p50
    return (
        Figure(label="jobs taken", value=taken, unit=Unit.COUNT),
        Figure(label="order p50, alone", value=alone.p50, unit=Unit.SECONDS),
        Figure(label="order p50", value=beside.p50, unit=Unit.SECONDS),
        Figure(label="order max", value=beside.maximum, unit=Unit.SECONDS),
        Figure(label="order p50 ratio", value=ratio, unit=Unit.RATIO, target=ResultTarget(at_most=_MAX_RATIO)),
        Figure(label="server resident", value=resident, unit=Unit.BYTES),
    )


async def _orders(peers: AgentFleet, nodes: Sequence[str]) -> list[float]:
    """Return the seconds from each node's notice to the order that excludes it."""
    return [await _order(peers, node) for node in nodes]


async def _order(peers: AgentFleet, node: str) -> float:
    [job] = peers.jobs
    [sent] = await peers.notice([node], 0.0)
    deadline = time.monotonic() + 60.0
    while not (left := [order for order in job.orders if node in order.exclusions]):
        if time.monotonic() > deadline:
            raise AssertionError(f"{node} is not excluded")
        await asyncio.sleep(_POLL_SECONDS)
    return left[0].at - sent.at
