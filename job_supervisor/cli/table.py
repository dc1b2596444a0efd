"""Tables without borders, as kubectl prints them: colours and widths on a terminal, plain whole lines in a pipe."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from job_supervisor.cli.text import printable

_GAP = 2
_LEAST = 12
"""Columns that a shortened last column keeps; the terminal wraps the line if there is less room."""

_STYLES = {
    "Running": "green",
    "Queued": "yellow",
    "Waiting": "yellow",
    "Shrinking": "yellow",
    "Stopping": "yellow",
    "Suspended": "yellow",
    "Resuming": "cyan",
    "TimedOut": "red",
    "Finished": "dim",
    "connected": "green",
    "unknown": "red",
    "reclaimed": "dim",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `whole`: the last column is never shortened."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    whole: bool = False


Block = str | Table
"""A line, or a table."""


def write(stream: TextIO, blocks: Iterable[Block]) -> None:
    """Writes the blocks. On a terminal, a table's last column is shortened so that no row is longer than a line."""
    for block in blocks:
        if isinstance(block, str):
            stream.write(printable(block) + "\n")
        else:
            _write_table(stream, block)
    stream.flush()


def _write_table(stream: TextIO, table: Table) -> None:
    terminal = Console(file=stream)
    rows = [tuple(printable(cell) for cell in row) for row in table.rows]
    *widths, last = (max(map(cell_len, column)) for column in zip(table.heads, *rows, strict=True))
    before = sum(width + _GAP for width in widths)
    if terminal.is_terminal and not table.whole:
        last = min(last, max(_LEAST, terminal.width - before))
    shown = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for head, width in zip(table.heads, (*widths, last), strict=True):
        shown.add_column(Text(head), width=width, no_wrap=True, overflow="ellipsis")
    for row in rows:
        shown.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    # As wide as the table: the widths above are final, also beyond the terminal's.
    console = Console(file=stream, width=before + last + _GAP, height=len(rows) + 1, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    # Rich pads the last column, and a pipe wants no trailing blanks.
    stream.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))
