"""The dashboards are what Grafana publishes that dashboards are."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # Its stubs would be one more package.
import pytest

from charts.dashboards import dashboards
from tests.monitoring.monitoring_programs import DASHBOARD, OPTIONS, Schemas

_BOARDS = {name: json.loads(text) for name, text in dashboards().items()}
_EVERY = pytest.mark.parametrize("board", _BOARDS.values(), ids=_BOARDS)


@_EVERY
def test_a_dashboard_is_valid_by_the_published_schema(schemas: Schemas, board: Any) -> None:
    jsonschema.Draft7Validator(schemas[DASHBOARD]).validate(board)


@_EVERY
def test_a_panels_options_are_those_of_its_kind(schemas: Schemas, board: Any) -> None:
    for panel in _panels(board):
        jsonschema.Draft7Validator(schemas[OPTIONS[panel["type"]]]).validate(panel["options"])


def test_the_schema_refuses_what_no_dashboard_has(schemas: Schemas) -> None:
    """Else it would prove nothing."""
    board = json.loads(json.dumps(next(iter(_BOARDS.values()))))
    next(_panels(board))["titel"] = "?"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schemas[DASHBOARD]).validate(board)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schemas[OPTIONS["stat"]]).validate({"colorMode": "no such mode"})


@_EVERY
def test_every_panel_says_what_it_shows_and_asks_the_source_that_is_chosen(board: Any) -> None:
    panels = list(_panels(board))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    taken = [cell for panel in board["panels"] for cell in _cells(panel["gridPos"])]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) == 23


def test_one_leader_is_green_and_none_or_two_are_red() -> None:
    (panel,) = [each for each in _panels(_BOARDS["health.json"]) if each["title"] == "Leaders"]
    steps = [(step["value"], step["color"]) for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    assert steps == [(None, "red"), (1, "green"), (2, "red")]


@_EVERY
def test_quantiles_are_called_by_their_usual_names(board: Any) -> None:
    """By p50, p90 and p99, or as the median."""
    for panel in _panels(board):
        for target in panel["targets"]:
            called = f"{panel['title']} {target['legendFormat']}".replace("median", "p50")
            quantiles = re.findall(r"(?:histogram_quantile|quantile by \(\w+\) )\((0\.\d+)", target["expr"])
            assert all(f"p{float(quantile) * 100:g}" in called for quantile in quantiles), called


def _panels(board: Any) -> Iterator[Any]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def _cells(at: Any) -> Iterator[tuple[int, int]]:
    return ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))
