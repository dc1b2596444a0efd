"""Every failpoint that is registered stands somewhere in its deployable, and every one that stands there is tested."""

import ast
import inspect
from collections import Counter
from enum import Enum
from pathlib import Path

import kubeai.elastic.commands.failpoints
import pytest

import node_agent.failpoints
import supervisor.failpoints
from tests.chaos.chaos_points import AGENT, LAUNCHER, ON_CLUSTER, SUPERVISOR, Armed

_REGISTRIES: list[type[Enum]] = [
    supervisor.failpoints.At,
    node_agent.failpoints.At,
    kubeai.elastic.commands.failpoints.At,
]


def _home(registry: type[Enum]) -> Path:
    return Path(inspect.getfile(registry)).parent


def _passed(directory: Path) -> Counter[str]:
    """How often each `failpoint(At.NAME)` stands in the files of a directory."""
    calls = (
        node
        for path in directory.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failpoint"
    )
    return Counter(call.args[0].attr for call in calls if isinstance(call.args[0], ast.Attribute))


@pytest.mark.parametrize("registry", _REGISTRIES, ids=lambda each: each.__module__)
def test_every_name_stands_for_one_place(registry: type[Enum]) -> None:
    """Neither a name that no code passes, nor one that two places share."""
    assert _passed(_home(registry)) == dict.fromkeys(registry.__members__, 1)


@pytest.mark.parametrize(
    ("registry", "scenarios"),
    list(zip(_REGISTRIES, [(*SUPERVISOR, *ON_CLUSTER), AGENT, LAUNCHER], strict=True)),
    ids=lambda _: "",
)
def test_every_name_has_a_scenario(registry: type[Enum], scenarios: tuple[Armed, ...]) -> None:
    assert {armed.name for armed in scenarios} == {each.value for each in registry}
