"""The queries of all panels, asked as Grafana asks them."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charts.dashboards import dashboards
from tests.monitoring.monitoring_servers import SCRAPE_SECONDS, Prometheus, Series

STEP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of one panel."""

    board: str
    panel: str
    kind: str
    expr: str
    legend: str

    def answer(self, server: Prometheus, begin: float, end: float) -> list[Series]:
        """What the panel shows of that time: numbers, and no series that has none."""
        expr = _filled(self.expr, end - begin)
        is_instant = self.kind in {"stat", "table"}
        found = server.at(expr, end) if is_instant else server.over(expr, begin, end, STEP_SECONDS)
        shown = [Series(each.labels, [point for point in each.points if math.isfinite(point[1])]) for each in found]
        return [each for each in shown if each.points]

    def called(self, labels: Mapping[str, str]) -> str:
        """What the legend calls a series with these labels."""
        return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), self.legend)


def every_query() -> Sequence[Asked]:
    """All of them, in the order of the panels."""
    return [asked for name, text in dashboards().items() for asked in _of(name.removesuffix(".json"), json.loads(text))]


def _of(board: str, whole: Any) -> Iterator[Asked]:
    for panel in whole["panels"]:
        for target in panel.get("targets", ()):
            yield Asked(board, panel["title"], panel["type"], target["expr"], target["legendFormat"])


def _filled(expr: str, span: float) -> str:
    """With the variables that Grafana knows."""
    every = f"{STEP_SECONDS * 1000:.0f}ms"
    rate = f"{max(STEP_SECONDS + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS) * 1000:.0f}ms"
    filled = expr.replace("$__range", f"{math.ceil(span)}s").replace("$__rate_interval", rate)
    return filled.replace("$__interval", every)
