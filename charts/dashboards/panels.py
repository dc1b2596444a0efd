"""Panels of all dashboards: a number, lines, bars, states, a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from charts.dashboards.frame import SOURCE
from charts.dashboards.queries import of_the_chosen_installation

_HEIGHT = 8
_LEAST_INTERVAL = "1m"
"""Between two points of a panel that counts events: four scrapes, so that no event is between two points."""
_STAT_HEIGHT = 4


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and the legend of its series. `{{label}}` is replaced by the label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class PanelText:
    """The texts of a panel.

    Attributes:
        title: The title.
        means: The description, shown as a tool tip.
        unit: The unit of its values, by Grafana's name.
        runbook: The alert about the same thing; the panel links to its runbook.
    """

    title: str
    means: str
    unit: str = "none"
    runbook: str = ""

    @property
    def links(self) -> list[Builder[model.DashboardLink]]:
        if not self.runbook:
            return []
        link = dashboard.DashboardLink(f"Runbook: {self.runbook}").type(model.DashboardLinkType.LINK)
        return [link.url(f"${{docs:raw}}docs/runbooks/{self.runbook}.md").target_blank(target_blank=True)]


def number(
    text: PanelText,
    query: Query,
    *,
    width: int = 4,
    good_from: float | None = None,
    bad_from: float | None = None,
) -> stat.Panel:
    """A single number for the whole time range or for now. It is red below `good_from` and from `bad_from` on."""
    usual = "blue" if bad_from is None else "green"
    steps = [model.Threshold(value=None, color=usual if good_from is None else "red")]
    if good_from is not None:
        steps.append(model.Threshold(value=good_from, color=usual))
    if bad_from is not None:
        steps.append(model.Threshold(value=bad_from, color="red"))
    panel = stat.Panel().title(text.title).description(text.means).unit(text.unit).datasource(SOURCE).links(text.links)
    panel = panel.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
    panel = panel.graph_mode(common_model.BigValueGraphMode.NONE).color_mode(common_model.BigValueColorMode.VALUE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    # Increases of counters between two scrapes are not whole numbers.
    panel = panel.decimals(0) if text.unit == "none" else panel
    return panel.no_value("0").span(width).height(_STAT_HEIGHT).with_target(_target(query, "A").instant())


def lines(
    text: PanelText, *queries: Query, width: int = 12, exemplars: bool = False, limit: float | None = None
) -> timeseries.Panel:
    """Values over time. With `exemplars`, single observations link to their notice and job. `limit` is a red line."""
    panel = _over_time(text, width).fill_opacity(8).line_width(1).show_points(common_model.VisibilityMode.AUTO)
    for query, name in zip(queries, _names(), strict=False):
        panel = panel.with_target(_target(query, name).range().exemplar(exemplar=exemplars))
    if any("$__interval" in query.expr for query in queries):
        panel = panel.interval(_LEAST_INTERVAL)
    return panel if limit is None else _limited(panel, limit)


def areas(text: PanelText, *queries: Query, width: int = 12) -> timeseries.Panel:
    """Parts of a whole over time, stacked."""
    return _stacked(lines(text, *queries, width=width).fill_opacity(60))


def bars(text: PanelText, *queries: Query, width: int = 12) -> timeseries.Panel:
    """Events over time, stacked."""
    panel = lines(text, *queries, width=width).draw_style(common_model.GraphDrawStyle.BARS).fill_opacity(80)
    # Each bar covers the time since the previous point.
    return _stacked(panel.bar_alignment(common_model.BarAlignment.BEFORE).decimals(0).min(0))


def states(
    text: PanelText, query: Query, names: Sequence[tuple[str, str, str]], width: int = 12
) -> statetimeline.Panel:
    """States over time. `names` has the text and colour of each value."""
    options = {
        value: model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, text, color) in enumerate(names)
    }
    panel = statetimeline.Panel().title(text.title).description(text.means).datasource(SOURCE)
    panel = panel.mappings([model.ValueMap(options=options)]).span(width).height(_HEIGHT).row_height(0.8)
    return panel.with_target(_target(query, "A").range())


def rows(text: PanelText, query: Query, *, width: int = 12) -> table.Panel:
    """Shows one row per series, with its labels."""
    panel = table.Panel().title(text.title).description(text.means).unit(text.unit).datasource(SOURCE).decimals(0)
    dropped = model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
    panel = panel.show_header(show_header=True).frame_index(0)
    target = _target(query, "A").instant().format(PromQueryFormat.TABLE)
    return panel.with_transformation(dropped).span(width).height(_HEIGHT).with_target(target)


def _over_time(text: PanelText, width: int) -> timeseries.Panel:
    panel = timeseries.Panel().title(text.title).description(text.means).unit(text.unit).datasource(SOURCE)
    panel = panel.links(text.links)
    panel = (
        panel.span(width)
        .height(_HEIGHT)
        .legend(
            common.VizLegendOptions()
            .show_legend(show_legend=True)
            .placement(common_model.LegendPlacement.BOTTOM)
            .display_mode(common_model.LegendDisplayMode.LIST)
            .calcs([])
        )
    )
    return panel.tooltip(
        common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI).sort(common_model.SortOrder.DESCENDING)
    )


def _limited(panel: timeseries.Panel, limit: float) -> timeseries.Panel:
    steps = [model.Threshold(value=None, color="transparent"), model.Threshold(value=limit, color="red")]
    style = common.GraphThresholdsStyleConfig().mode(common_model.GraphThresholdsStyleMode.LINE)
    limits = dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)
    return panel.thresholds(limits).thresholds_style(style)


def _stacked(panel: timeseries.Panel) -> timeseries.Panel:
    return panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))


def _target(query: Query, name: str) -> prometheus.Dataquery:
    expr = of_the_chosen_installation(query.expr)
    return prometheus.Dataquery().ref_id(name).expr(expr).legend_format(query.legend).datasource(SOURCE)


def _names() -> str:
    return "ABCDEFGH"
