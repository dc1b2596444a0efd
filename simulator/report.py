"""The verdict as a table for people, followed by the failures."""

from collections.abc import Iterator

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from simulator.outcome import ReplayOutcome
from simulator.verdict import Figures, GroupMeaning, Latency, NoticeGroup

# A broken run can fail in hundreds of places, and the first few are enough.
MAX_FINDINGS = 12


def report(outcome: ReplayOutcome) -> RenderableType:
    return Lines(table(outcome), *_shortcomings(outcome))


def table(outcome: ReplayOutcome) -> Table:
    result = Table(title="Verdict, by the simulated cloud's truth", title_justify="left", show_header=False)
    result.add_column()
    result.add_column(justify="right")
    for name, value in rows(outcome.verdict.figures) if outcome.verdict is not None else ():
        result.add_row(name, value)
    result.add_section()
    word = Text("passed", style="bold green") if outcome.ok else Text("FAILED", style="bold red")
    result.add_row("verdict", word)
    return result


def rows(figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield name and value of every figure."""
    groups = figures.groups
    sizes = ", ".join(str(len(group.hosts)) for group in groups) or "-"
    yield "notices", f"{figures.notices} in groups of {sizes}"
    yield "notice → process, p50 / p99", _latency(figures.notice_to_process)
    yield "notice that means STOP → flag, p50 / p99", _latency(figures.notice_to_flag)
    yield "notice → host list, p50 / p99", _latency(figures.notice_to_host_list)
    yield "changes of exclusions per group", _changes(groups)
    yield "suspensions / resumes", f"{figures.suspensions} / {figures.resumes}"
    yield "false stops", str(figures.false_stops)
    yield "violated demands", str(figures.unmet)
    yield "steps applied", str(figures.steps_applied)
    yield "steps lost", str(figures.steps_lost)
    yield "steps skipped", str(figures.steps_skipped)
    yield "steps after the stop's checkpoint", str(figures.steps_after_stop)
    yield "parameters equal to an uninterrupted run", "yes" if figures.parameters_equal else "NO"


def _latency(latency: Latency) -> str:
    if latency.p50 is None or latency.p99 is None:
        return "-"
    return f"{latency.p50:.2f} s / {latency.p99:.2f} s (n={latency.count})"


def _changes(groups: tuple[NoticeGroup, ...]) -> str:
    shrinks = [str(group.changes) for group in groups if group.meaning is GroupMeaning.SHRINK]
    stops = sum(group.meaning is GroupMeaning.STOP for group in groups)
    return (", ".join(shrinks) or "-") + (f" (and {stops} meant STOP)" if stops else "")


def _shortcomings(outcome: ReplayOutcome) -> Iterator[Text]:
    for shortcoming in outcome.shortcomings[:MAX_FINDINGS]:
        yield Text(shortcoming, style="red")
    if (more := len(outcome.shortcomings) - MAX_FINDINGS) > 0:
        yield Text(f"and {more} more", style="red")
    if outcome.blames_machine:
        yield Text(
            f"The machine was overloaded, up to {outcome.late:.1f} s late; repeat it on an idle one.", style="red"
        )
