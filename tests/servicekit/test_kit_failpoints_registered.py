"""Every registered failpoint is used in its deployable, and every used one is tested."""

import ast
from collections import Counter
from enum import StrEnum
from pathlib import Path

import kubeai.elastic.commands.failpoints
import pytest

import node_agent.notices
import supervisor.failpoints
from supervisor.jobs.registry import KINDS
from tests.chaos.chaos_points import AGENT, LAUNCHER, ON_CLUSTER, SUPERVISOR

_ROOT = Path(supervisor.failpoints.__file__).parents[1]
_KINDS = {_ROOT / "supervisor" / "jobs" / kind.name: tuple(kind.failpoints) for kind in KINDS}
_HOMES: dict[Path, tuple[StrEnum, ...]] = {
    _ROOT / "supervisor": tuple(supervisor.failpoints.At),
    _ROOT / "node_agent": tuple(node_agent.notices.AgentFailpoint),
    Path(kubeai.elastic.commands.failpoints.__file__).parent: tuple(kubeai.elastic.commands.failpoints.RunFailpoint),
    **_KINDS,
}


def _passed(directory: Path) -> Counter[str]:
    """How often each `failpoint(At.NAME)` stands in the files of a directory that are not a kind's own."""
    calls = (
        node
        for path in directory.rglob("*.py")
        if directory in _KINDS or not _KINDS.keys() & set(path.parents)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint"
    )
    return Counter(call.args[0].attr for call in calls if isinstance(call.args[0], ast.Attribute))


@pytest.mark.parametrize("home", _HOMES, ids=lambda home: home.name)
def test_every_name_stands_for_one_place(home: Path) -> None:
    """Neither a name that no code passes, nor one that two places share."""
    assert _passed(home) == dict.fromkeys([point.name for point in _HOMES[home]], 1)


def test_every_name_has_a_scenario() -> None:
    armed = {armed.name for armed in (*SUPERVISOR, *ON_CLUSTER, *AGENT, *LAUNCHER)}
    assert armed == {point.value for points in _HOMES.values() for point in points}


def test_no_two_of_a_deployable_have_one_value() -> None:
    values = [
        point.value for home, points in _HOMES.items() if home.is_relative_to(_ROOT / "supervisor") for point in points
    ]
    assert len(values) == len(set(values))
