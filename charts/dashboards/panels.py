"""Panels as all dashboards have them: a number, lines, bars, states, a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Whichever Prometheus the viewer chooses."""

_HEIGHT = 8
_STAT_HEIGHT = 4


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and what its series are called; `{{label}}` stands for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Says:
    """What a panel says of itself.

    Attributes:
        title: Above it.
        means: What is seen, for the tool tip beside the title.
        unit: Of its values, as Grafana names units.
    """

    title: str
    means: str
    unit: str = "none"


def number(
    says: Says, query: Query, *, width: int = 4, good_from: float | None = None, bad_from: float | None = None
) -> stat.Panel:
    """Builds a panel with a number, of the whole time shown or of now; red below `good_from` and from `bad_from` on."""
    usual = "blue" if bad_from is None else "green"
    steps = [model.Threshold(value=None, color=usual if good_from is None else "red")]
    if good_from is not None:
        steps.append(model.Threshold(value=good_from, color=usual))
    if bad_from is not None:
        steps.append(model.Threshold(value=bad_from, color="red"))
    panel = stat.Panel().title(says.title).description(says.means).unit(says.unit).datasource(SOURCE)
    panel = panel.thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
    panel = panel.graph_mode(common_model.BigValueGraphMode.NONE).color_mode(common_model.BigValueColorMode.VALUE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    # Counters that grew between two scrapes are no whole numbers.
    panel = panel.decimals(0) if says.unit == "none" else panel
    return panel.no_value("0").span(width).height(_STAT_HEIGHT).with_target(_asked(query, "A").instant())


def lines(says: Says, *queries: Query, width: int = 12, exemplars: bool = False) -> timeseries.Panel:
    """Values over time; with `exemplars`, single observations beside them lead to their notice and job."""
    panel = _over_time(says, width).fill_opacity(8).line_width(1).show_points(common_model.VisibilityMode.AUTO)
    for query, name in zip(queries, _names(), strict=False):
        panel = panel.with_target(_asked(query, name).range().exemplar(exemplar=exemplars))
    return panel


def areas(says: Says, *queries: Query, width: int = 12) -> timeseries.Panel:
    """Parts of a whole over time, one on the other."""
    return _stacked(lines(says, *queries, width=width).fill_opacity(60))


def bars(says: Says, *queries: Query, width: int = 12) -> timeseries.Panel:
    """Events over time, one on the other."""
    panel = lines(says, *queries, width=width).draw_style(common_model.GraphDrawStyle.BARS).fill_opacity(80)
    # Each point reaches to the one before it.
    return _stacked(panel.bar_alignment(common_model.BarAlignment.BEFORE).decimals(0).min(0))


def states(says: Says, query: Query, names: Sequence[tuple[str, str, str]], width: int = 12) -> statetimeline.Panel:
    """Who was in which state when; `names` has each value with its text and colour."""
    options = {
        value: model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, text, color) in enumerate(names)
    }
    panel = statetimeline.Panel().title(says.title).description(says.means).datasource(SOURCE)
    panel = panel.mappings([model.ValueMap(options=options)]).span(width).height(_HEIGHT).row_height(0.8)
    return panel.with_target(_asked(query, "A").range())


def rows(says: Says, query: Query, *, width: int = 12) -> table.Panel:
    """One row a series, with its labels."""
    panel = table.Panel().title(says.title).description(says.means).unit(says.unit).datasource(SOURCE).decimals(0)
    dropped = model.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
    panel = panel.show_header(show_header=True).frame_index(0)
    asked = _asked(query, "A").instant().format(PromQueryFormat.TABLE)
    return panel.with_transformation(dropped).span(width).height(_HEIGHT).with_target(asked)


def _over_time(says: Says, width: int) -> timeseries.Panel:
    panel = timeseries.Panel().title(says.title).description(says.means).unit(says.unit).datasource(SOURCE)
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


def _stacked(panel: timeseries.Panel) -> timeseries.Panel:
    return panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))


def _asked(query: Query, name: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(name).expr(query.expr).legend_format(query.legend).datasource(SOURCE)


def _names() -> str:
    return "ABCDEFGH"
