"""Operations of a JSON patch (RFC 6902)."""

from collections.abc import Mapping, Sequence

import msgspec


class Add(msgspec.Struct, frozen=True, tag_field="op", tag="add"):
    """Adds a value, or appends one to a list."""

    path: str
    value: object


def appended(path: str, there: Sequence[object] | None, values: Sequence[Mapping[str, object]]) -> list[Add]:
    """The operations that append values to a list, which may not exist yet."""
    if not values:
        return []
    return [Add(f"{path}/-", each) for each in values] if there else [Add(path, list(values))]


def key(name: str) -> str:
    """Escapes a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
