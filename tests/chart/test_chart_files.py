import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from charts.files import CHART, written
from charts.settings_schema import (
    AGENT_OWNED,
    SUPERVISOR_OWNED,
    agent_settings,
    camel,
    supervisor_settings,
)
from charts.values_table import Undocumented, values_table
from node_agent.settings import AgentSettings
from supervisor.settings import Settings as SupervisorSettings


@pytest.mark.parametrize("path", written(), ids=lambda path: path.name)
def test_what_is_made_of_other_files_is_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == written()[path], "run `make chart`"


def test_a_value_without_a_comment_is_no_documentation() -> None:
    """The value is named; a comment above a map speaks for all of it."""
    assert '| `a.b` | `{"c": 1}` | Why. Really. |' in values_table("a:\n  # Why.\n  # Really.\n  b:\n    c: 1\n")
    with pytest.raises(Undocumented, match=r"^a\.c$"):
        values_table("a:\n  # Why.\n  b: 1\n  c: 1\n")


@pytest.mark.parametrize(
    ("cls", "schema", "owned"),
    [
        (SupervisorSettings, supervisor_settings(), SUPERVISOR_OWNED),
        (AgentSettings, agent_settings(), AGENT_OWNED),
    ],
    ids=["supervisor", "agent"],
)
def test_every_setting_is_in_the_values_or_the_charts_own(cls: Any, schema: Any, owned: frozenset[str]) -> None:
    """None is both and none is neither, and each says what it is."""
    fields = {field.name for field in dataclasses.fields(cls)}
    assert owned <= fields
    assert set(schema["properties"]) == {camel(name) for name in fields - owned}
    assert all(each["description"] for each in schema["properties"].values())


@pytest.mark.parametrize("schema", [supervisor_settings(), agent_settings()], ids=["supervisor", "agent"])
def test_every_number_has_an_upper_bound(schema: Any) -> None:
    """A typing error of some digits would switch off the protection, and nothing would say so."""
    numbers = {name: each for name, each in schema["properties"].items() if each.get("type") in {"number", "integer"}}
    assert len(numbers) > 4
    assert [name for name, each in numbers.items() if "maximum" not in each] == []


def test_every_map_of_the_schema_is_closed() -> None:
    """Unknown keys are refused everywhere but in maps that are Kubernetes' own or the user's."""
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    free = {
        "affinity",
        "annotations",
        "commonAnnotations",
        "commonLabels",
        "global",
        "labels",
        "nodeSelector",
        "podAnnotations",
        "podLabels",
        "podSecurityContext",
        "pools",
        "securityContext",
        "serviceAnnotations",
        "limits",
        "requests",
    }
    assert set(_open_maps(schema, "")) == free


def _open_maps(schema: Any, name: str) -> list[str]:
    if not isinstance(schema, dict):
        return []
    here = [name] if schema.get("type") == "object" and schema.get("additionalProperties") is not False else []
    below = {**schema.get("properties", {}), **schema.get("definitions", {})}
    return here + [each for key, value in below.items() for each in _open_maps(value, key)]


def test_the_version_of_the_chart_is_that_of_the_services() -> None:
    chart = (CHART / "Chart.yaml").read_text("utf-8")
    project = (CHART.parents[1] / "pyproject.toml").read_text("utf-8")
    [version] = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)
    assert f"\nversion: {version}\nappVersion: {version}\n" in chart
