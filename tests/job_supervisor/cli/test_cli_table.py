"""Tables on a terminal and in a pipe."""

import io

import pytest
from rich.cells import cell_len
from rich.text import Text

from job_supervisor.cli.output import Table, write

_REASON = "gpu-3 will be reclaimed, says aliyun; continuing with 3 hosts (minimum 2). " * 2
_HEADS = ("JOB", "PHASE", "RUN", "WORKERS", "EXCLUDED", "MIN", "MAX", "AGE", "REASON")
_JOBS = Table(_HEADS, [("resnet", "Shrinking", "1", "3", "1", "2", "4", "3m5s", _REASON), ("任务", *"x" * 8)])


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _written(table: Table, stream: io.StringIO) -> list[str]:
    write(stream, [table])
    return stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    table = Table(("A", "B"), [("long", "x"), ("s", "")])
    assert _written(table, io.StringIO()) == ["A     B", "long  x", "s"]


@pytest.mark.parametrize("columns", [80, 100])
def test_a_long_reason_never_breaks_a_row_of_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [Text.from_ansi(line).plain for line in _written(_JOBS, _Terminal())]
    assert len(lines) == 3
    assert max(map(cell_len, lines)) <= columns
    assert lines[1].startswith("resnet  Shrinking  1")
    assert lines[1].endswith("…")


@pytest.mark.parametrize(
    ("table", "stream"), [(_JOBS, io.StringIO()), (Table(_HEADS, _JOBS.rows, whole=True), _Terminal())]
)
def test_a_pipe_and_a_wide_table_get_the_whole_reason(
    monkeypatch: pytest.MonkeyPatch, table: Table, stream: io.StringIO
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = _written(table, stream)
    assert len(lines) == 3
    assert _REASON.rstrip() in lines[1]


def test_colours_are_for_terminals_and_not_for_those_who_want_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32m" not in "".join(_written(Table(("PHASE",), [("Running",)]), io.StringIO()))
    table = Table(("PHASE",), [("Running",)])
    assert "\x1b[32m" in "".join(_written(table, _Terminal()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in "".join(_written(table, _Terminal()))


def test_no_cell_commands_a_terminal_or_forges_a_row() -> None:
    table = Table(("A", "B"), [("[red]x[/red]", "y\r\nz\x1b[2J")])
    (_, row) = _written(table, io.StringIO())
    assert row.startswith("[red]x[/red]  y")
    assert not {"\x1b", "\r"} & set(row)
