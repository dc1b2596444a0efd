"""The tables of docs/reference/settings.md: every setting of a service with its default and description."""

import dataclasses
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from msgspec import Meta


def settings_defaults(cls: type[Any], prefix: str) -> str:
    """Return a row per setting, in the order of the names."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = sorted(dataclasses.fields(cls), key=lambda field: field.name)
    rows = (
        f"| `{prefix}_{each.name.upper()}` | {_default(each)} | {_description(hints[each.name])} |" for each in fields
    )
    return "\n".join(["| variable | default | |", "| --- | --- | --- |", *rows])


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    written = _written(field.default)
    return f"`{written}`" if written else ""


def _written(value: object) -> str:
    """Return a default as the environment would have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, (tuple, frozenset)):
        return ",".join(_written(each) for each in value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _description(hint: Any) -> str:
    return " ".join(_described(hint)).replace("|", "\\|")


def _described(hint: Any) -> Iterator[str]:
    yield from (
        meta.description for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta) and meta.description
    )
