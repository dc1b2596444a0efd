"""The start of a supervisor where many pods are already, with few."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.scenarios.startup import measure
from tests.testkit.controlplane.binaries import BinaryProgram

pytestmark = pytest.mark.long

_NODES = 64
"""With 512 pods: more than a page of a list has."""


async def test_a_start_reads_all_pods_once(programs: Mapping[BinaryProgram, Path], tmp_path: Path) -> None:
    """A first start and a restart list the pods once, in pages; a first start writes each job three times at most."""
    assert programs
    outcome = await measure(tmp_path, [_NODES], settle=0.0)
    first, again = ({figure.label: figure.value for figure in row.figures} for row in outcome.rows)
    assert [first["of pods"], again["of pods"]] == [2, 2]
    assert 0 < again["synced"] <= again["serves"] <= again["decided"] < 30
    jobs, lease_and_events = _NODES // 8, 30
    assert 2 * jobs <= first["writes"] <= 3 * jobs + lease_and_events
    assert 0 < first["RSS"] <= first["peak"]
