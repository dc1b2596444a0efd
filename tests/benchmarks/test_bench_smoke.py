"""Scenarios of the benchmarks, as small as they can be; `make bench ARGS=--short` runs all of them."""

from pathlib import Path

import pytest

from benchmarks.harness.fleet import FleetSize
from benchmarks.scenarios import agreement, footprint, metrics, webhook
from benchmarks.scenarios.fanout import FanoutLoad


async def test_a_tiny_storm_is_measured_while_somebody_reads_metrics(tmp_path: Path) -> None:
    """Real supervisor, real clients over TLS: every process of the stopped job is told."""
    size = FleetSize(nodes=4, streams=8, jobs=2)
    row = await metrics.measure(tmp_path / "run", FanoutLoad(case="tiny", size=size, notices=2, storm=True, tls=True))
    values = {figure.label: figure.value for figure in row.figures}
    assert 0 < values["fan-out p50"] <= values["fan-out max"] < 10
    assert 0 < values["to rank 0 max"] < 10
    assert values["a stream"] > 0


async def test_a_few_pods_are_shaped(tmp_path: Path) -> None:
    outcome = await webhook.run(tmp_path, short=True)
    values = [{figure.label: figure.value for figure in row.figures} for row in outcome.rows]
    assert all(0 < each["answer p50"] < each["asked by HTTPS p50"] < 10 for each in values)


@pytest.mark.long
async def test_a_few_ranks_agree_and_meet_at_a_barrier(tmp_path: Path) -> None:
    """With a late rank the barrier blocks all ranks, and the agreement none, with relays and without."""
    case = agreement.AgreementCase(name="16 ranks", ranks=16, late_seconds=0.6)
    *ours, theirs = [
        {figure.label: figure.value for figure in row.figures} for row in await agreement.measure(tmp_path, case)
    ]
    assert [(each["blocked max"], each["proposal → all committed p50"] > 0) for each in ours] == [(0, True)] * 2
    assert 0.3 < theirs["blocked p50"] <= theirs["blocked max"] < 10


@pytest.mark.long
async def test_what_runs_on_every_node_is_measured_at_rest(tmp_path: Path) -> None:
    """Real agents, one of them with an API server, which it lists and watches."""
    outcome = await footprint.run(tmp_path, short=True)
    alone, clustered, *_ = [{figure.label: figure.value for figure in row.figures} for row in outcome.rows]
    assert 0 < alone["resident"] < clustered["resident"]
    assert min(alone["wake-ups a second"], clustered["wake-ups a second"]) > 0
