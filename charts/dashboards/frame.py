"""The common frame of the dashboards and their JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from charts.dashboards.queries import of_the_chosen_installation

TAG = "elastic-job-supervisor"

Panel = Builder[model.Panel]

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the viewer chooses."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class DashboardPage:
    """One dashboard.

    Attributes:
        name: File name and dashboard id.
        title: Title in the list of dashboards.
        about: Description.
        sections: Sections from top to bottom.
        variables: Variables besides those of every dashboard.
    """

    name: str
    title: str
    about: str
    sections: Sequence[Section]
    variables: Sequence[dashboard.QueryVariable] = ()

    def text(self) -> str:
        """Return the JSON that Grafana imports."""
        return json.dumps(_whole(self._built()), indent=1, sort_keys=True) + "\n"

    def _built(self) -> Any:
        board = dashboard.Dashboard(self.title).uid(f"{TAG}-{self.name}").description(self.about).tags([TAG])
        for variable in (_datasource(), *_installation(), *self.variables, _docs()):
            board = board.with_variable(variable)
        board = board.link(_others()).time("now-6h", "now").refresh("30s").editable()
        for annotation in _annotations():
            board = board.annotation(annotation)
        board = board.tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser")
        for section in self.sections:
            board = board.with_row(dashboard.Row(section.title))
            for panel in section.panels:
                board = board.with_panel(panel)
        return json.loads(json.dumps(board.build(), cls=JSONEncoder))


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def label_variable(name: str, label: str, metric: str) -> dashboard.QueryVariable:
    """A variable with the values of a label. By default all are chosen, and series without the label as well."""
    variable = dashboard.QueryVariable(name).label(label).query(f"label_values({metric}, {name})").datasource(SOURCE)
    variable = variable.multi(multi=True).include_all(include_all=True).all_value(".*")
    chosen = model.VariableOption(selected=True, text="All", value="$__all")
    return variable.current(chosen).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)


def _installation() -> Sequence[dashboard.QueryVariable]:
    """Labels of the target: they select among several installations in one Prometheus."""
    namespaces = 'job_supervisor_leader{cluster=~"$cluster"}'
    return (
        label_variable("cluster", "Cluster", "job_supervisor_leader"),
        label_variable("namespace", "Namespace of the supervisor", namespaces),
    )


def _docs() -> dashboard.TextBoxVariable:
    """The runbooks' place. The chart writes its value `metrics.rules.runbookUrl`."""
    return dashboard.TextBoxVariable("docs").label("URL of the runbooks").default_value("")


def _annotations() -> Sequence[dashboard.AnnotationQuery]:
    new_version = "count by (version) (job_supervisor_build_info unless job_supervisor_build_info offset 2m)"
    return (
        _annotation("Reclaims", "orange", "sum by (source) (increase(job_supervisor_reclaims_total[1m])) > 0"),
        _annotation(
            "New versions", "blue", f"{new_version} unless count by (version) (job_supervisor_build_info offset 2m)"
        ),
    )


def _annotation(name: str, color: str, expr: str) -> dashboard.AnnotationQuery:
    query = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(enable=True).icon_color(color)
    return query.expr(of_the_chosen_installation(expr))


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Other dashboards").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.keep_time(keep_time=True).include_vars(include_vars=True)


def _whole(board: dict[str, Any]) -> dict[str, Any]:
    """Add a panel id for links, and remove fields that belong to other kinds of variables."""
    for variable in board["templating"]["list"]:
        for other in ("auto", "auto_count", "auto_min"):
            variable.pop(other, None)
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    return board
