"""The dashboards are what Grafana publishes that dashboards are."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # Its stubs would be one more package.
import pytest

from charts.dashboards import dashboards
from tests.monitoring.monitoring_programs import DASHBOARD, OPTIONS, Schemas

_ROOT = Path(__file__).parents[2]
_BOARDS = {name: json.loads(text) for name, text in dashboards().items()}
_EVERY = pytest.mark.parametrize("board", _BOARDS.values(), ids=_BOARDS)


@_EVERY
def test_a_dashboard_is_valid_by_the_published_schema(schemas: Schemas, board: Any) -> None:
    """But for the query of an annotation, which Grafana and its library have and the schema lacks."""
    known = copy.deepcopy(board)
    assert all(each.pop("expr") for each in known["annotations"]["list"])
    jsonschema.Draft7Validator(schemas[DASHBOARD]).validate(known)


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


@_EVERY
def test_every_query_can_be_limited_to_an_installation(board: Any) -> None:
    """By the variables of the dashboard, which choose everything unless something is chosen."""
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert {"datasource", "cluster", "namespace", "docs"} <= variables.keys()
    assert {variables[name]["allValue"] for name in ("cluster", "namespace")} == {".*"}
    for target in (target for panel in _panels(board) for target in panel["targets"]):
        metrics = re.findall(r"\b(?:job_supervisor|node_agent|state_keeper)_\w+({[^}]*)?", target["expr"])
        assert metrics
        assert all('cluster=~"$cluster",namespace=~"$namespace"' in selector for selector in metrics), target["expr"]


@_EVERY
def test_events_are_counted_by_increase_over_several_scrapes(board: Any) -> None:
    """A point that is closer to the next one than the samples would miss events."""
    for panel in _panels(board):
        asked = " ".join(target["expr"] for target in panel["targets"])
        assert "_total" not in asked or re.search(r"(increase|rate)\(|unless", asked), panel["title"]
        if "$__interval" in asked:
            assert panel["interval"] == "1m", panel["title"]


@_EVERY
def test_a_dashboard_marks_reclaims_and_new_versions(board: Any) -> None:
    assert {"Reclaims", "New versions"} <= {each["name"] for each in board["annotations"]["list"]}
    assert board["editable"] is True


@_EVERY
def test_a_link_of_a_panel_leads_to_a_runbook(board: Any) -> None:
    links = [link["url"] for panel in _panels(board) for link in panel.get("links") or ()]
    assert all(re.fullmatch(r"\${docs:raw}docs/runbooks/\w+\.md", url) for url in links)
    assert all((_ROOT / url.partition("}")[2]).exists() for url in links)


def test_health_and_jobs_lead_to_runbooks() -> None:
    for name in ("health.json", "jobs.json"):
        assert [panel for panel in _panels(_BOARDS[name]) if panel.get("links")]


def test_jobs_can_be_chosen_by_name() -> None:
    board = _BOARDS["jobs.json"]
    assert {"job_namespace", "job_name"} <= {each["name"] for each in board["templating"]["list"]}
    named = [panel for panel in _panels(board) if "by job" in panel["title"]]
    assert len(named) >= 3
    for target in (target for panel in named for target in panel["targets"]):
        assert 'job_namespace=~"$job_namespace",job_name=~"$job_name"' in target["expr"]


def _panels(board: Any) -> Iterator[Any]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def _cells(at: Any) -> Iterator[tuple[int, int]]:
    return ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))
