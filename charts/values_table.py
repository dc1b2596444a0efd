"""The tables of the chart's README: its values with their comments, and the settings with their descriptions."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from charts.settings_schema import Schema


class Undocumented(Exception):  # noqa: N818  # It names what is so.
    """A value has no comment: write one above it."""


def values_table(text: str) -> str:
    """Every value of a values.yaml with its default and the comment above it; a comment speaks for all that is below.

    Raises:
        Undocumented: One has none.
    """
    rows = _rows(text.splitlines(), yaml.compose(text, yaml.SafeLoader), ())
    return _table(("value", "default", ""), ((f"`{path}`", f"`{default}`", comment) for path, default, comment in rows))


def settings_table(schema: Schema, prefix: str) -> str:
    """Every setting that a map `settings` may hold, with its variable."""
    rows = (
        (f"`{name}`", f"`{prefix}_{_snake(name)}`", each.get("description", ""))
        for name, each in schema["properties"].items()
    )
    return _table(("setting", "variable", ""), rows)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _rows(lines: Sequence[str], node: Any, above: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for key, value in node.value:
        path = (*above, key.value)
        comment = _comment(lines, key.start_mark.line)
        if comment:
            yield ".".join(path), _written(value), comment
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _rows(lines, value, path)
        else:
            raise Undocumented(".".join(path))


def _comment(lines: Sequence[str], line: int) -> str:
    """What stands directly above a line."""
    said: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        said.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(said)


def _written(node: Any) -> str:
    return json.dumps(yaml.SafeLoader("").construct_document(node))


def _snake(name: str) -> str:
    return "".join(f"_{each}" if each.isupper() else each.upper() for each in name)
