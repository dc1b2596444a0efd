"""Prints tables and sentences for people, and JSON, YAML, names and JSONPath for programs. Asks for confirmation."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TextIO

import jsonpath
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from job_supervisor.cli.errors import CliUsageError
from servicekit.wording import duration


def age(seconds: float | None) -> str:
    """Formats seconds for a column, as in `42s`, `3m5s`, `7h10m` and `4d3h`; `-` if unknown."""
    return "-" if seconds is None else duration(seconds).replace(" min", "m").replace(" ", "")


def printable(line: str) -> str:
    """Replaces control characters in a line that may quote a peer; a newline would forge a row."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


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
    """A table. If `whole` is set, the last column is never shortened."""

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


_ACTION = re.compile(r"""\{((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^{}"'])*)\}""")
_ESCAPED_NAME = re.compile(r"\.((?:[^\s.\[\]()\\]|\\.)*\\\.(?:[^\s.\[\]()\\]|\\.)*)")
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_ESCAPE = re.compile(r"\\.")
_TEXT = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\'": "'", "\\\\": "\\"}


class TemplateError(ValueError):
    """The template is wrong; the message says where."""


class JsonPathTemplate:
    """A parsed JSONPath template.

    Raises:
        TemplateError: It is wrong.
    """

    def __init__(self, text: str) -> None:
        if "{" not in text:
            text = f"{{{text if text[:1] in ('.', '[', '$') else f'.{text}'}}}"
        # Literal text and, marked with True, the insides of braces.
        pieces, at = list[tuple[bool, str]](), 0
        for found in _ACTION.finditer(text):
            pieces += [(False, text[at : found.start()]), (True, found[1].strip())]
            at = found.end()
        self._parts = _parsed(iter([*pieces, (False, text[at:])]))

    def render(self, value: Any) -> str:
        """Returns the text for a value of JSON; a path that does not exist gives nothing."""
        return "".join(_rendered(self._parts, value))


class _Path:
    def __init__(self, text: str) -> None:
        path = _ESCAPED_NAME.sub(lambda found: f"[{json.dumps(found[1].replace(chr(92) + '.', '.'))}]", text)
        path = f"${path[1:] if path[:1] in ('$', '@') else path}"
        try:
            self._query = jsonpath.compile("$" if path in ("$", "$.") else path)
        except jsonpath.JSONPathError as error:
            raise TemplateError(f"{text!r} is not a JSONPath: {error.args[0] if error.args else error}") from error

    def find(self, value: Any) -> Sequence[Any]:
        # The library queries objects and arrays only, and `{.}` within a range may stand for a string.
        return self._query.findall(value) if isinstance(value, (dict, list)) else [value]


@dataclass(frozen=True, slots=True)
class _Range:
    path: _Path
    body: "Sequence[_Part]"


_Part = str | _Path | _Range


def _parsed(pieces: Iterator[tuple[bool, str]], *, inside: bool = False) -> list[_Part]:
    parts: list[_Part] = []
    for is_action, text in pieces:
        if not is_action:
            if set("{}") & set(text):
                raise TemplateError(f"a brace is not closed in {text!r}")
            parts.append(text)
        elif text == "end":
            if not inside:
                raise TemplateError("{end} without {range}")
            return parts
        elif text.split(maxsplit=1)[:1] == ["range"]:
            parts.append(_Range(_Path(text.removeprefix("range").strip()), _parsed(pieces, inside=True)))
        else:
            quoted = _QUOTED.fullmatch(text)
            parts.append(_ESCAPE.sub(lambda found: _TEXT.get(found[0], found[0]), quoted[2]) if quoted else _Path(text))
    if inside:
        raise TemplateError("{range} without {end}")
    return parts


def _rendered(parts: Sequence[_Part], value: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, _Path):
            shown = ("" if each is None else each for each in part.find(value))
            yield " ".join(each if isinstance(each, str) else json.dumps(each, separators=(",", ":")) for each in shown)
        else:
            for each in part.path.find(value):
                yield from _rendered(part.body, each)


_JSONPATH = "jsonpath="


class OutputForm(StrEnum):
    """The forms that `--output` accepts by name. It also accepts `jsonpath=TEMPLATE`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Output:
    """The chosen form; `template` is set for JSONPath alone."""

    form: OutputForm
    template: JsonPathTemplate | None = None

    @classmethod
    def parse(cls, text: str) -> "Output":
        """Parses the value of `--output`, for argparse."""
        if text.startswith(_JSONPATH):
            try:
                return cls(OutputForm.JSON, JsonPathTemplate(text.removeprefix(_JSONPATH)))
            except TemplateError as error:
                raise argparse.ArgumentTypeError(str(error)) from error
        if text not in set(OutputForm):
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(OutputForm)}, {_JSONPATH}TEMPLATE")
        return cls(OutputForm(text))

    @property
    def for_people(self) -> bool:
        return self.form in (OutputForm.TABLE, OutputForm.WIDE)

    @property
    def wide(self) -> bool:
        return self.form is OutputForm.WIDE

    def value(self, value: object, names: Iterable[str]) -> None:
        """Prints a value for programs; `names` are what `-o name` prints, as `job/NAME` or `node/NAME`."""
        if self.template is not None:
            sys.stdout.write(self.template.render(msgspec.to_builtins(value)))
        elif self.form is OutputForm.NAME:
            sys.stdout.write("".join(printable(name) + "\n" for name in names))
        elif self.form is OutputForm.YAML:
            sys.stdout.write(f"---\n{msgspec.yaml.encode(value).decode()}")
        else:
            sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()


def show(*blocks: Block) -> None:
    write(sys.stdout, blocks)


def complain(*blocks: Block) -> None:
    write(sys.stderr, blocks)


def job_names(names: Sequence[str]) -> list[str]:
    return [f"job/{name}" for name in names]


def confirm(question: str, refusal: str) -> None:
    """Asks a question on standard error.

    Raises:
        CliUsageError: The answer is not yes, with `refusal` as its message; or there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise CliUsageError("This has real effects and needs a confirmation. Without a terminal, pass --yes.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliUsageError(refusal)
