"""Draws the results of every dashboard query for a replay.

Run as a module: plays the replay and writes a picture of each dashboard to docs/images/.
"""

import io
import math
import sys
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tests.monitoring.monitoring_panels import STEP_SECONDS, Panel, PanelQuery, boards
from tests.monitoring.monitoring_programs import ProgramUnavailable, programs
from tests.monitoring.monitoring_replay import Recording, recorded
from tests.monitoring.monitoring_servers import Series
from tests.testkit.pictures import DIRECTORY, small

_COLUMNS = 24
_INCHES_A_CELL = (0.62, 0.34)
_MAX_NAMES = 12
_LETTERS_A_COLUMN = 7
"""Of the names of series, beside a panel's title."""

_LETTERS_OF_A_MARK = 5

_PLAIN = {"s": "s", "h": "h", "ops": "/s", "none": "", "percentunit": "%"}

Shown = tuple[PanelQuery, Series]


def draw(name: str, panels: Sequence[Panel], recording: Recording) -> bytes:
    rows = max(panel.at["y"] + panel.at["h"] for panel in panels)
    wide, high = _INCHES_A_CELL
    figure = Figure(figsize=(_COLUMNS * wide, rows * high), facecolor="white")
    for panel in panels:
        _place(figure, panel, rows, recording)
    figure.text(0.01, 0.002, f"{name}: query results of a replay, drawn without Grafana", fontsize=7, color="grey")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return small(drawn.getvalue())


def _place(figure: Figure, panel: Panel, rows: int, recording: Recording) -> None:
    at = panel.at
    left, bottom = at["x"] / _COLUMNS, 1 - (at["y"] + at["h"]) / rows
    if panel.kind == "row":
        figure.text(left + 0.01, bottom + 0.3 / rows, panel.title, fontsize=12, weight="bold")
        return
    width, height = at["w"] / _COLUMNS, at["h"] / rows
    axes = figure.add_axes((left + 0.035, bottom + 1.3 / rows, width - 0.05, height - 2.4 / rows))
    axes.set_title(f"{panel.title}{_unit(panel)}", fontsize=9, loc="left")
    begin, end = recording.begin, recording.truth.closed
    shown = [(asked, each) for asked in panel.queries for each in asked.answer(recording.prometheus, begin, end)]
    if panel.kind in {"timeseries", "state-timeline"}:
        axes.set_xlim(0, end - begin)
        axes.set_xlabel("seconds", fontsize=6, loc="right", labelpad=1)
    _DRAWN[panel.kind](axes, panel, shown, begin)


def _number(axes: Axes, panel: Panel, shown: Sequence[Shown], _begin: float) -> None:
    axes.axis("off")
    value = shown[0][1].points[-1][1] if shown else 0.0
    if panel.unit == "percentunit":
        value *= 100
    # As Grafana: a count has no decimals, although an increase that Prometheus extrapolates has some.
    is_count = panel.unit == "none"
    axes.text(0.5, 0.4, f"{value:.0f}" if is_count else f"{value:.3g}", fontsize=20, ha="center", va="center")


def _table(axes: Axes, _panel: Panel, shown: Sequence[Shown], _begin: float) -> None:
    axes.axis("off")
    names = sorted({name for _, each in shown for name in each.labels})
    cells = [[*(each.labels.get(name, "") for name in names), f"{each.points[-1][1]:.0f}"] for _, each in shown]
    if cells:
        table = axes.table(cells, colLabels=[*names, "value"], loc="upper center", cellLoc="left")
        table.auto_set_font_size(value=False)
        table.set_fontsize(8)
        table.scale(1, 1.4)


def _states(axes: Axes, _panel: Panel, shown: Sequence[Shown], begin: float) -> None:
    for row, (asked, each) in enumerate(shown):
        for when, value in each.points:
            colour = "tab:green" if value else "tab:blue"
            axes.barh(row, STEP_SECONDS, left=when - begin, color=colour, height=0.8)
        axes.text(0, row, f" {asked.called(each.labels)}", va="center", fontsize=7, backgroundcolor="white")
    axes.set_yticks([])
    axes.tick_params(labelsize=7)


def _over_time(axes: Axes, panel: Panel, shown: Sequence[Shown], begin: float) -> None:
    below: dict[float, float] = {}
    for asked, each in shown:
        points = {when - begin: value for when, value in each.points}
        name = asked.called(each.labels)
        if panel.is_stacked:
            _stack(axes, panel, points, below, name)
            below |= {when: below.get(when, 0.0) + value for when, value in points.items()}
        else:
            _line(axes, points, name)
    axes.tick_params(labelsize=7)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=panel.is_bars))
    axes.grid(visible=True, alpha=0.3)
    _from_zero(axes, shown)
    if 0 < len(shown) <= _MAX_NAMES:
        _name_series(axes, panel)


def _from_zero(axes: Axes, shown: Sequence[Shown]) -> None:
    """Shows a steady value as a level line, and series that are always zero on the lower edge."""
    if any(value > 0 for _, each in shown for _, value in each.points):
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    else:
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1])


def _name_series(axes: Axes, panel: Panel) -> None:
    """Names the series on the line of the panel's title, where the names hide no point."""
    handles, names = axes.get_legend_handles_labels()
    letters = sum(len(name) + _LETTERS_OF_A_MARK for name in names) + len(panel.title)
    lines = 1 if letters < _LETTERS_A_COLUMN * panel.at["w"] else 2
    axes.legend(
        handles,
        names,
        ncol=math.ceil(len(names) / lines),
        fontsize=6,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        frameon=False,
        borderpad=0,
        columnspacing=1,
        handlelength=1.2,
    )


def _line(axes: Axes, points: Mapping[float, float], name: str) -> None:
    gaps = {when + STEP_SECONDS: math.nan for when in points if not _has_next(points, when)}
    times, values = zip(*sorted({**points, **gaps}.items()), strict=True)
    axes.plot(times, values, marker=".", markersize=5, linewidth=1, label=name, clip_on=False)


def _has_next(points: Mapping[float, float], when: float) -> bool:
    return any(0 < other - when < 1.5 * STEP_SECONDS for other in points)


def _stack(axes: Axes, panel: Panel, points: Mapping[float, float], below: Mapping[float, float], name: str) -> None:
    times, values = list(points), list(points.values())
    under = [below.get(when, 0.0) for when in times]
    if panel.is_bars:
        axes.bar(times, values, width=-STEP_SECONDS, align="edge", bottom=under, label=name)
    else:
        above = [low + value for low, value in zip(under, values, strict=True)]
        axes.fill_between(times, under, above, alpha=0.6, label=name, linewidth=0)


_DRAWN = {"stat": _number, "table": _table, "state-timeline": _states, "timeseries": _over_time}


def _unit(panel: Panel) -> str:
    unit = _PLAIN.get(panel.unit, panel.unit)
    return f" ({unit})" if unit else ""


def main() -> int:
    try:
        found = programs()
    except ProgramUnavailable as reason:
        print(reason, file=sys.stderr)  # noqa: T201  # Whoever runs it wants to know.
        return 1
    DIRECTORY.mkdir(exist_ok=True)
    with recorded(found) as recording:
        for name, panels in boards().items():
            (DIRECTORY / f"dashboard-{name}.png").write_bytes(draw(name, panels, recording))
    return 0


if __name__ == "__main__":
    sys.exit(main())
