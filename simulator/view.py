"""Shows what happens in a world: a live screen in a terminal, plain lines elsewhere.

It reads the truth, the workers on each node, and the supervisor's status. It changes nothing.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from simulator.cloud.nodes import worker_pids
from simulator.cloud.trace import Node
from simulator.events import JobEvent, JobEventKind, read
from simulator.harness import ReplayWorld
from simulator.status import ReadJobStatus, ReadStatus, StatusUnavailable

POLL_SECONDS = 0.25
# Notices of one group are shown within 0.2 s.
TOGETHER_SECONDS = 0.25
COLUMNS = 4
LAST_EVENTS = 8


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as it truly is. `seconds_left` is set while it has a notice."""

    name: str
    workers: int = 0
    seconds_left: float | None = None
    synthetic: bool = False
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class ViewSnapshot:
    """Everything visible at one moment. `status` is None while the supervisor does not answer."""

    seconds: float
    nodes: tuple[NodeView, ...] = ()
    status: ReadStatus | None = None
    events: tuple[JobEvent, ...] = field(default=())
    started_at: float = 0.0

    @property
    def recent(self) -> Sequence[JobEvent]:
        """The events since the start, without the arrival of the initial nodes."""
        return [event for event in self.events if event.t >= self.started_at]

    @property
    def jobs(self) -> Sequence[ReadJobStatus]:
        return self.status.jobs if self.status is not None else ()


def nodes_of(
    events: Sequence[JobEvent], now: float, workers: Callable[[str], int], excluded: frozenset[str]
) -> tuple[NodeView, ...]:
    """Return the nodes that exist after these events, in order of arrival. `now` is in Unix seconds."""
    deadlines: dict[str, tuple[float, bool] | None] = {}
    for event in events:
        match event.kind:
            case JobEventKind.NODE_ADDED:
                deadlines[event.text("node")] = None
            case JobEventKind.NOTICE_SHOWN:
                deadlines[event.text("node")] = (float(event.fields["deadline"]), bool(event.fields["synthetic"]))
            case JobEventKind.NOTICE_WITHDRAWN:
                deadlines[event.text("node")] = None
            case JobEventKind.NODE_GONE:
                deadlines.pop(event.text("node"), None)
            case _:
                pass
    return tuple(
        NodeView(
            name=node,
            workers=workers(node),
            seconds_left=None if notice is None else max(0.0, notice[0] - now),
            synthetic=notice is not None and notice[1],
            excluded=node in excluded,
        )
        for node, notice in deadlines.items()
    )


def sentences(events: Sequence[JobEvent]) -> Iterator[tuple[float, str]]:
    """Yield the events as sentences with their time. Nodes of one group share a sentence."""
    row: list[JobEvent] = []
    for event in events:
        if row and not _together(row[-1], event):
            yield row[0].t, _sentence(row)
            row = []
        row.append(event)
    if row:
        yield row[0].t, _sentence(row)


def settled(events: Sequence[JobEvent], now: float) -> Sequence[JobEvent]:
    """Return the events without the newest, which may still be joined by others of their group."""
    count, later = len(events), now
    while count and later - events[count - 1].t < TOGETHER_SECONDS:
        count -= 1
        later = events[count].t
    return events[:count]


def _together(one: JobEvent, two: JobEvent) -> bool:
    return (
        one.kind is two.kind and two.t - one.t < TOGETHER_SECONDS and one.fields.get("group") == two.fields.get("group")
    )


def _sentence(events: Sequence[JobEvent]) -> str:
    first = events[0]
    nodes = ", ".join(str(event.fields.get("node", "")) for event in events)
    match first.kind:
        case JobEventKind.NODE_ADDED:
            return f"arrived: {nodes}" if len(events) <= COLUMNS else f"arrived: {len(events)} nodes"
        case JobEventKind.NOTICE_SHOWN:
            made_up = " (synthetic)" if first.fields["synthetic"] else ""
            return f"noticed{made_up}: {nodes}, gone in {first.fields['lead']:.0f} s"
        case JobEventKind.NOTICE_WITHDRAWN:
            return f"notice withdrawn: {nodes}"
        case JobEventKind.NODE_GONE:
            return f"gone: {nodes}" + ("" if first.fields["announced"] else " (unannounced)")
        case JobEventKind.SCENARIO_ENDED:
            return "scenario ended"
        case _:
            return f"{first.kind}: {nodes}"


def screen(snapshot: ViewSnapshot) -> RenderableType:
    return Group(_headline(snapshot), _node_table(snapshot), *_recent(snapshot))


def _headline(snapshot: ViewSnapshot) -> Text:
    if snapshot.status is None:
        return Text(f"{snapshot.seconds:5.1f} s  the supervisor does not answer", style="yellow")
    if not snapshot.jobs:
        return Text(f"{snapshot.seconds:5.1f} s  no job yet", style="dim")
    return Text("\n").join(
        Text.assemble(
            f"{snapshot.seconds:5.1f} s  ",
            (job.job, "bold"),
            "  ",
            (job.phase, _phase_style(job.phase)),
            f"  {job.reason}",
        )
        for job in snapshot.jobs
    )


def _phase_style(phase: str) -> str:
    match phase:
        case "Running" | "Finished":
            return "bold green"
        case "Shrinking" | "Resuming" | "Waiting":
            return "bold yellow"
        case _:
            return "bold red"


def _node_table(snapshot: ViewSnapshot) -> Table:
    table = Table.grid(padding=(0, 3))
    cells = [_cell(node) for node in snapshot.nodes]
    for start in range(0, len(cells), COLUMNS):
        table.add_row(*cells[start : start + COLUMNS])
    return table


def _cell(node: NodeView) -> Text:
    mark = Text("●" if node.workers else "○", style="green" if node.workers else "dim")
    text = mark + Text(f" {node.name:<7}", style="")
    if node.seconds_left is not None:
        what = "synthetic" if node.synthetic else "noticed"
        text += Text(f"{what} {node.seconds_left:4.1f} s", style="red")
    if node.excluded:
        text += Text(" excluded", style="yellow")
    return text


def _recent(snapshot: ViewSnapshot) -> Iterator[Text]:
    for at, words in list(sentences(snapshot.recent))[-LAST_EVENTS:]:
        yield Text(f"{at - snapshot.started_at:5.1f} s  {words}", style="dim")


def changes(before: ViewSnapshot, now: ViewSnapshot) -> Iterator[str]:
    """Yield what plain output prints about the change from one snapshot to the next."""
    for at, words in sentences(now.recent[len(before.recent) :]):
        yield f"{at - now.started_at:5.1f} s  {words}"
    if now.status is None and before.status is not None:
        yield f"{now.seconds:5.1f} s  the supervisor does not answer"
    known = {job.job: (job.phase, job.reason) for job in before.jobs}
    for job in now.jobs:
        if known.get(job.job) != (job.phase, job.reason):
            yield f"{now.seconds:5.1f} s  {job.job}: {job.phase}: {job.reason}"


class ReplayViewer:
    def __init__(self, world: ReplayWorld) -> None:
        self._world = world
        self._latest = ViewSnapshot(0.0, started_at=time.time())

    async def show(self, console: Console) -> NoReturn:
        """Show the world until cancelled. The last snapshot stays on the screen."""
        if not console.is_terminal:
            await self._print(console)
        with Live(console=console, auto_refresh=False, transient=False) as live:
            while True:
                _, snapshot = await self.refresh()
                live.update(screen(snapshot), refresh=True)
                await asyncio.sleep(POLL_SECONDS)

    async def refresh(self) -> tuple[ViewSnapshot, ViewSnapshot]:
        """Return the previous and the present snapshot."""
        status = None
        with suppress(StatusUnavailable):
            status = await self._world.status()
        before, self._latest = self._latest, self._snapshot(status)
        return before, self._latest

    async def _print(self, console: Console) -> NoReturn:
        while True:
            for line in changes(*await self.refresh()):
                console.print(line, soft_wrap=True, markup=False, highlight=False)
            await asyncio.sleep(POLL_SECONDS)

    def _snapshot(self, status: ReadStatus | None) -> ViewSnapshot:
        now = time.time()
        events = tuple(settled(read(self._world.paths.truth), now))
        jobs = status.jobs if status is not None else []
        excluded = frozenset(host for job in jobs for host in job.exclusions)
        nodes = nodes_of(events, now, self._workers, excluded)
        return ViewSnapshot(now - self._latest.started_at, nodes, status, events, self._latest.started_at)

    def _workers(self, node: str) -> int:
        return len(worker_pids(self._world.paths, Node(node)))
