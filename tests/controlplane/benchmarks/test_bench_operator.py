"""Both operators of the benchmark, with as few jobs as there can be."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.results import ScenarioOutcome
from benchmarks.scenarios.operator import OperatorLoad, measure
from tests.testkit.controlplane.binaries import BinaryProgram

pytestmark = pytest.mark.long

TINY = OperatorLoad(jobs=2, workers=2, rest=0.5)


async def test_each_operator_is_measured_by_its_own_requests(
    programs: Mapping[BinaryProgram, Path], tmp_path: Path
) -> None:
    """Each creates three pods and three Services for a job, and one pod for a lost worker; nobody else's count."""
    assert programs
    starts, ratios, changes, writes = await measure(tmp_path, TINY)
    ours, theirs, unlimited = (figures(starts, row) for row in range(3))
    for one in (ours, theirs, unlimited):
        assert 0 < one["pods created"] <= one["jobs run"] + 5
        assert 2 <= one["without Events"] <= one["writes a pod"]
        assert 0 < one["RSS"] <= one["peak"]
    assert figures(ratios, 0)["RSS"] == ours["RSS"] / theirs["RSS"]
    assert all(0 < figures(changes, row)["created"] <= figures(changes, row)["run"] for row in range(3))
    written = {row.case: [figure.value for figure in row.figures] for row in writes.rows}
    assert written["create pods"] == [3, 1, 3, 1]
    assert written["create services"] == [3, 1, 3, 0]
    assert written["create secrets"] == [1, 0, 0, 0]


def figures(outcome: ScenarioOutcome, row: int) -> dict[str, float]:
    return {figure.label: figure.value for figure in outcome.rows[row].figures}
