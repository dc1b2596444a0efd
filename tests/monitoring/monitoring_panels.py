"""The panels of all dashboards, and their queries asked as Grafana asks them."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charts.dashboards import dashboards
from tests.monitoring.monitoring_servers import SCRAPE_SECONDS, Prometheus, Series

STEP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class PanelQuery:
    panel: str
    kind: str
    expr: str
    legend: str

    def answer(self, server: Prometheus, begin: float, end: float, every: float = STEP_SECONDS) -> list[Series]:
        """The panel's series in that time, without empty ones; points are `every` seconds apart."""
        expr = _filled(self.expr, end - begin, every)
        is_instant = self.kind in {"stat", "table"}
        found = server.at(expr, end) if is_instant else server.over(expr, begin, end, every)
        shown = [Series(each.labels, [point for point in each.points if math.isfinite(point[1])]) for each in found]
        return [each for each in shown if each.points]

    def called(self, labels: Mapping[str, str]) -> str:
        return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: where it is on the grid of 24 columns, how it is drawn, and what it asks."""

    title: str
    kind: str
    unit: str
    is_stacked: bool
    is_bars: bool
    at: Mapping[str, int]
    queries: Sequence[PanelQuery]


def boards() -> Mapping[str, Sequence[Panel]]:
    """The panels of each dashboard; rows between them are panels without queries."""
    return {
        name.removesuffix(".json"): [_panel(each) for each in json.loads(text)["panels"]]
        for name, text in dashboards().items()
    }


def every_query() -> Sequence[PanelQuery]:
    return [asked for panels in boards().values() for panel in panels for asked in panel.queries]


def _panel(panel: Any) -> Panel:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    custom = defaults.get("custom") or {}
    return Panel(
        title=panel["title"],
        kind=panel["type"],
        unit=defaults.get("unit", ""),
        is_stacked=custom.get("stacking", {}).get("mode") == "normal",
        is_bars=custom.get("drawStyle") == "bars",
        at=panel["gridPos"],
        queries=[_asked(panel, target) for target in panel.get("targets", ())],
    )


def _asked(panel: Any, target: Any) -> PanelQuery:
    return PanelQuery(panel["title"], panel["type"], target["expr"], target["legendFormat"])


def _filled(expr: str, span: float, every: float) -> str:
    rate = f"{max(every + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS) * 1000:.0f}ms"
    filled = expr.replace("$__range", f"{math.ceil(span)}s").replace("$__rate_interval", rate)
    for variable in ("cluster", "namespace", "job_namespace", "job_name"):
        filled = filled.replace(f"${variable}", ".*")
    return filled.replace("$__interval", f"{every * 1000:.0f}ms")
