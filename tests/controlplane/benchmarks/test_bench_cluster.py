"""The benchmarks' cluster, as small as it can be."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.results import ScenarioOutcome
from benchmarks.scenarios.cluster import ClusterSize, measure
from tests.testkit.controlplane.binaries import BinaryProgram

pytestmark = pytest.mark.long

TINY = ClusterSize(
    gpus=2, big=2, big_lost=1, small=3, small_nodes=2, small_lost=1, hit=2, stopped=1, streams=1, over=0.5, idle=1.0
)


async def test_a_tiny_cluster_is_measured(programs: Mapping[BinaryProgram, Path], tmp_path: Path) -> None:
    """Every job that loses a node is decided about, once, and no other; what was asked for it is counted."""
    assert programs
    load, starts, requests = await measure(tmp_path, TINY)
    wave = figures(load, 1)
    assert 0 < wave["durable p50"] <= wave["STOP max"] < 10
    assert wave["exclusions p50"] >= 1.25
    assert wave["changes of exclusions a job, max"] == 1
    assert wave["decisions about others"] == 0
    assert wave["writes a notice"] == 2
    assert figures(starts, 0)["serves after"] > 3
    assert 0 < figures(starts, 2)["decided after"] < 20
    counted = {row.case: row.figures[1].value for row in requests.rows}
    assert counted["create reclaimnotices"] == 3


def figures(outcome: ScenarioOutcome, row: int) -> dict[str, float]:
    return {figure.label: figure.value for figure in outcome.rows[row].figures}
