"""The common frame of the dashboards and their JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

TAG = "elastic-job-supervisor"

Panel = Builder[model.Panel]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Page:
    """One dashboard.

    Attributes:
        name: File name and dashboard id.
        title: Title in the list of dashboards.
        about: Description.
        sections: Sections from top to bottom.
    """

    name: str
    title: str
    about: str
    sections: Sequence[Section]

    def text(self) -> str:
        """Return the JSON that Grafana imports."""
        return json.dumps(_whole(self._built()), indent=1, sort_keys=True) + "\n"

    def _built(self) -> Any:
        board = dashboard.Dashboard(self.title).uid(f"{TAG}-{self.name}").description(self.about).tags([TAG])
        board = board.with_variable(_datasource()).link(_others()).time("now-6h", "now").refresh("30s").readonly()
        board = board.tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser")
        for section in self.sections:
            board = board.with_row(dashboard.Row(section.title))
            for panel in section.panels:
                board = board.with_panel(panel)
        return json.loads(json.dumps(board.build(), cls=JSONEncoder))


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Other dashboards").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.keep_time(keep_time=True).include_vars(include_vars=True)


def _whole(board: dict[str, Any]) -> dict[str, Any]:
    """Add a panel id for links, and remove fields that belong to other kinds of variables."""
    for variable in board["templating"]["list"]:
        for other in ("auto", "auto_count", "auto_min"):
            del variable[other]
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    return board
