"""Results as Markdown tables of a page."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from benchmarks.results import Figure, ResultMachine, Results, ScenarioOutcome, Unit

BEGIN = "<!-- results: `make bench-page` writes what is below -->"
END = "<!-- end of results -->"

_MEBIBYTE = 1024 * 1024
_KIBIBYTE = 1024


class MissingMarkersError(ValueError):
    """The page lacks the two markers between which the tables belong."""


def page(text: str, results: Results) -> str:
    """Return the page with these results.

    Raises:
        MissingMarkersError: It has no place for them.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise MissingMarkersError(f"the page must contain {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{render(results)}\n{END}{after}"


def render(results: Results) -> str:
    """Return all tables as Markdown."""
    parts = [_machine(results.machine, short=results.short), *(outcome_table(outcome) for outcome in results.outcomes)]
    return "\n".join(parts)


def outcome_table(outcome: ScenarioOutcome) -> str:
    """Return a scenario's table as Markdown."""
    labels = _labels(outcome)
    lines = [f"### {outcome.title}", "", outcome.method, "", *_head(labels)]
    for row in outcome.rows:
        cells = {figure.label: _cell(figure) for figure in row.figures}
        lines.append(_line([row.case, *(cells.get(label, "") for label in labels)]))
    return "\n".join([*lines, *_reasons(outcome), ""])


def formatted(figure: Figure) -> str:
    """Format a figure with a suitable unit."""
    return _FORMATS[figure.unit](figure.value)


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _bytes(value: float) -> str:
    return f"{value / _MEBIBYTE:.1f} MiB" if abs(value) >= _MEBIBYTE else f"{value / _KIBIBYTE:.1f} KiB"


_FORMATS: Mapping[Unit, Callable[[float], str]] = {
    Unit.SECONDS: _seconds,
    Unit.NANOSECONDS: lambda value: f"{value:.1f} ns",
    Unit.BYTES: _bytes,
    Unit.CORES: lambda value: f"{value * 100:.3g} %",
    Unit.COUNT: lambda value: f"{value:,.0f}",
    Unit.RATIO: lambda value: f"{value:.3g}",
    Unit.SHARE: lambda value: f"{value * 100:.2f} %",
}


def _machine(machine: ResultMachine, *, short: bool) -> str:
    memory = machine.memory_bytes / _MEBIBYTE / 1024
    kind = "A short run, which only checks that everything works. " if short else ""
    return f"{kind}{machine.cores} cores ({machine.cpu}), {memory:.0f} GiB, Python {machine.python}.\n"


def _labels(outcome: ScenarioOutcome) -> list[str]:
    return list(dict.fromkeys(figure.label for row in outcome.rows for figure in row.figures))


def _head(labels: list[str]) -> Iterator[str]:
    yield _line(["", *labels])
    yield _line(["---", *("---:" for _ in labels)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(figure: Figure) -> str:
    if figure.target is None:
        return formatted(figure)
    bound = formatted(Figure(label="", value=figure.target.at_most, unit=figure.unit))
    return f"{formatted(figure)} ({'≤' if figure.met else '**not** ≤'} {bound})"


def _reasons(outcome: ScenarioOutcome) -> Iterator[str]:
    missed = [(row.case, figure) for row in outcome.rows for figure in row.figures if figure.met is False]
    for case, figure in missed:
        if figure.target is not None and figure.target.why:
            yield f"\nNot met, {case}, {figure.label}: {figure.target.why}"
