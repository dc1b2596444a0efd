"""The dashboards show what happened in a replay."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from simulator.verdict import Figures, GroupMeaning
from tests.monitoring.monitoring_panels import PanelQuery, boards, every_query
from tests.monitoring.monitoring_pictures import draw
from tests.monitoring.monitoring_programs import MonitoringProgram
from tests.monitoring.monitoring_replay import LATE_ALERTS, RULES, Recording, recorded

# One process begins with them, in any form of the suite: another one that took over some would play the replay again.
pytestmark = [pytest.mark.long, pytest.mark.brief]

_QUERIES = every_query()
# What is recorded by a rule has a colon in its name.
_METRIC = re.compile(r"\b(?:job_supervisor|node_agent|state_keeper)_\w+\b(?!:)")
_OPTIONAL = {
    "job_supervisor_notifications_total",
    "job_supervisor_pool_cost_total",
    "job_supervisor_pool_on_demand_cost_total",
}
"""The replay sends no notifications and has no prices; the tests of notifications, alerts and pools have these."""
_WITHOUT_PRICES = {"Cost", "Cost on demand", "Saved", "Cost of an hour by pool", "Saved in an hour by pool"}
"""The replay has no table of prices."""
_WITHOUT_AGREEMENTS = {"Time to agree"}
"""A quantile of nothing: the ranks of the replay agree on no step."""
_ROWS = 5
_BAR_SECONDS = 6.0
"""So many scrapes that one of them can be late: at 2 s, an increase between samples 1.25 s apart counts twice."""


@pytest.fixture(scope="module", name="recording")
def _recording(programs: Mapping[MonitoringProgram, Path]) -> Iterator[Recording]:
    with recorded(programs) as recording:
        yield recording


def test_the_replay_itself_went_well(recording: Recording) -> None:
    """By the judge, who knows nothing of metrics; and there was something to see."""
    figures = recording.truth.verdict.figures
    assert recording.truth.verdict.ok, recording.truth.verdict.failures
    assert {group.meaning for group in figures.groups} >= {GroupMeaning.SHRINK, GroupMeaning.STOP}
    assert figures.resumes


def test_no_panel_is_without_data(recording: Recording) -> None:
    begin, end = recording.begin, recording.truth.closed
    empty = {asked.panel for asked in _QUERIES if not asked.answer(recording.prometheus, begin, end)}
    assert empty == _WITHOUT_AGREEMENTS | _WITHOUT_PRICES


def test_rules_speak_of_what_is_served(recording: Recording) -> None:
    named = {name for path in RULES for name in _METRIC.findall(path.read_text("utf-8"))} - _OPTIONAL
    begin, end = recording.begin, recording.truth.closed
    assert not [name for name in named if not recording.prometheus.over(f"count({name})", begin, end, 1.0)]
    assert "job_supervisor_unacknowledged_stop_seconds_left" in named


@pytest.mark.parametrize(
    ("panel", "truth"),
    [
        ("Reclaims", lambda figures: figures.notices),
        ("Groups", lambda figures: _changes(figures) + figures.suspensions),
        ("Saved in time", lambda figures: figures.suspensions),
        ("Steps lost", lambda figures: figures.steps_lost),
        ("Suspensions", lambda figures: figures.suspensions),
        ("Resumes", lambda figures: figures.resumes),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_number_is_the_replays_own(recording: Recording, panel: str, truth: Callable[[Figures], int]) -> None:
    [asked] = [each for each in _QUERIES if (each.panel, each.kind) == (panel, "stat")]
    [shown] = asked.answer(recording.prometheus, recording.begin, recording.truth.ended)
    assert round(shown.points[-1][1]) == truth(recording.truth.verdict.figures)


def test_the_steps_that_are_compared_were_said(recording: Recording) -> None:
    """That none was lost is known from the step that rank 0 acknowledged, and the one that the next loaded."""
    asked = 'job_supervisor_acknowledgements_total{kind="saved"}'
    [said] = recording.prometheus.over(asked, recording.begin, recording.truth.ended, 1.0)
    assert said.points[-1][1] == recording.truth.verdict.figures.suspensions > 0


def test_bars_count_every_event(recording: Recording) -> None:
    """All points together are what happened, also where a series begins with its first event.

    Prometheus extrapolates an increase to its window, which is one scrape longer than the time between two points.
    """
    figures = recording.truth.verdict.figures
    shrunk = [group for group in figures.groups if group.meaning is GroupMeaning.SHRINK]
    assert _counted(recording, "By source") == _about({"aliyun": figures.notices})
    assert _counted(recording, "By zone") == _about({"cn-simulated-a": figures.notices})
    assert _counted(recording, "Outcome of notices") == _about(
        _but_none({"received": figures.notices, "withdrawn": recording.truth.withdrawn, "gone": _gone(recording)})
    )
    groups = {"shrunk": _changes(figures), "stopped": figures.suspensions}
    assert _counted(recording, "Groups") == _about(groups)
    new = _counted(recording, "Excluded hosts")["new"]
    assert new == _about(sum(len(group.hosts) for group in shrunk))
    assert _counted(recording, "Suspended, resumed, timed out") == _about(
        {"suspended": figures.suspensions, "resumed": figures.resumes, "timed out": 0}
    )
    assert _counted(recording, "Checkpoints") == _about({"saved in time": figures.suspensions, "too late": 0})


def test_a_job_is_counted_by_its_name(recording: Recording) -> None:
    figures = recording.truth.verdict.figures
    assert _counted(recording, "Suspensions by job") == _about({" demo": figures.suspensions})


def test_a_picture_of_it_can_be_drawn(recording: Recording) -> None:
    picture = draw("health", boards()["health"], recording)
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000


def test_an_outlier_leads_to_its_notice_and_job(recording: Recording) -> None:
    metric = "job_supervisor_notice_to_directive_seconds_bucket"
    found = recording.prometheus.exemplars(metric, recording.begin, recording.truth.ended)
    assert found
    for each in found:
        for exemplar in each["exemplars"]:
            assert exemplar["labels"]["job"] == "demo"
            assert exemplar["labels"]["notice_id"].startswith("aliyun")


def test_a_reclaim_that_would_miss_its_deadline_fires(recording: Recording) -> None:
    assert recording.alerts.keys() >= LATE_ALERTS
    for name in LATE_ALERTS:
        alert = recording.alerts[name]
        assert alert["labels"]["severity"] == "critical"
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        assert "{{" not in alert["annotations"]["summary"]


def _changes(figures: Figures) -> int:
    return sum(group.changes for group in figures.groups)


def _gone(recording: Recording) -> int:
    return recording.truth.verdict.figures.notices - recording.truth.withdrawn


def _but_none(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _about(counts: Any) -> Any:
    return pytest.approx(counts, rel=0.4)


def _counted(recording: Recording, panel: str) -> dict[str, float]:
    """All points of each series of a panel together, by what the series is called.

    An event can lie between two samples that both belong to two points. It does so in few of several rows of points,
    each of which begins a little later than the one before.
    """
    queries = [asked for asked in _QUERIES if (asked.panel, asked.kind) == (panel, "timeseries")]
    sums: defaultdict[str, list[float]] = defaultdict(list)
    for asked in queries:
        for row in range(_ROWS):
            for name, value in _sums(asked, recording, recording.begin - row * _BAR_SECONDS / _ROWS):
                sums[name].append(value)
    return {name: median(values) for name, values in sums.items()}


def _sums(asked: PanelQuery, recording: Recording, begin: float) -> Iterator[tuple[str, float]]:
    for series in asked.answer(recording.prometheus, begin, recording.truth.ended, _BAR_SECONDS):
        yield asked.called(series.labels), sum(value for _, value in series.points)
