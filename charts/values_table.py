"""The tables of the chart's README: the values with their comments, and the settings with their descriptions."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]  # The stubs would be one more package for one call.

from charts.settings_schema import Schema


class Undocumented(Exception):  # noqa: N818 - the name describes the value
    """A value has no comment. Write one above it."""


def values_table(text: str) -> str:
    """Return a row per value of values.yaml with its default and comment. A comment on a map covers the whole map.

    Raises:
        Undocumented: A value has no comment.
    """
    rows = _rows(text.splitlines(), yaml.compose(text, yaml.SafeLoader), ())
    return _table(("value", "default", ""), ((f"`{path}`", f"`{default}`", comment) for path, default, comment in rows))


def settings_table(schema: Schema, prefix: str) -> str:
    """Return a row per setting in a `settings` map with its environment variable."""
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
    """Return the comment directly above a line."""
    comment: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        comment.insert(0, lines[line].strip().removeprefix("#").strip())
    return " ".join(comment)


def _written(node: Any) -> str:
    return json.dumps(yaml.SafeLoader("").construct_document(node))


def _snake(name: str) -> str:
    return "".join(f"_{each}" if each.isupper() else each.upper() for each in name)
