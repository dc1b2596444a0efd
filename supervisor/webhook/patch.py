"""Operations of a JSON patch (RFC 6902)."""

from collections.abc import Mapping, Sequence

import msgspec


class Add(msgspec.Struct, frozen=True, tag_field="op", tag="add"):
    """Puts a value where there is none, or behind the last one of a list."""

    path: str
    value: object


def appended(path: str, there: Sequence[object] | None, values: Sequence[Mapping[str, object]]) -> list[Add]:
    """The values behind those of a list, which may be missing."""
    if not values:
        return []
    return [Add(f"{path}/-", each) for each in values] if there else [Add(path, list(values))]


def key(name: str) -> str:
    """A name as part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
