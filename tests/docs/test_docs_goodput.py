"""The goodput in both READMEs is what the benchmarks have measured last."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.__main__ import RESULTS
from benchmarks.results import read

_ROOT = Path(__file__).parents[2]
_CASES = ("recorded, lead 120 s", "100 nodes, reclaimed after 24 h", "500 nodes, reclaimed after 24 h")
_POLICIES = (
    "checkpoints every 60 s",
    "SIGTERM, poll of 2 s",
    "supervisor, by restarts",
    "supervisor, by warm restarts",
    "supervisor, torchrun in process",
    "oracle",
)
_ROW = re.compile(r"^\|[^|]+((?:\| \d+\.\d % ){6})\|$", re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_a_readme_has_the_measured_goodput(page: str) -> None:
    """With one digit, in the order of the cases and policies above."""
    measured = _goodput()
    expected = [[f"{100 * measured[case][policy]:.1f} %" for policy in _POLICIES] for case in _CASES]
    rows = _ROW.findall((_ROOT / page).read_text(encoding="utf-8"))
    assert [[cell.strip() for cell in row.strip("| ").split("|")] for row in rows] == expected


def _goodput() -> Mapping[str, Mapping[str, float]]:
    """The share of the possible steps that each policy made useful, by case."""
    [found] = [each for each in read(RESULTS).outcomes if each.title == "Goodput of replayed reclaims"]
    return {row.case: {figure.label: figure.value for figure in row.figures} for row in found.rows}
