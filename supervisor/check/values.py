"""Reads manifests that people wrote: a part that is missing or of another type is read as absent."""

from collections.abc import Mapping, Sequence

from servicekit.bounds import whole

_HUGE = 10**9

Value = object
"""A value of a decoded YAML or JSON document."""


def at(value: Value, *path: str) -> Value:
    """The value at that path of names; None if there is none."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def mapping(value: Value, *path: str) -> Mapping[str, Value]:
    """The mapping at that path; an empty one if there is none."""
    found = at(value, *path)
    return {str(name): each for name, each in found.items()} if isinstance(found, Mapping) else {}


def items(value: Value, *path: str) -> Sequence[Value]:
    """The list at that path; an empty one if there is none."""
    found = at(value, *path)
    return found if isinstance(found, list) else ()


def text(value: Value, *path: str) -> str:
    """The text at that path, also of a number; empty if there is none."""
    found = at(value, *path)
    return "" if found is None or isinstance(found, Mapping | list | bool) else str(found)


def number(value: Value, *path: str) -> float | None:
    """The number at that path; None if there is none."""
    found = at(value, *path)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if abs(found) < _HUGE else None  # YAML also has infinities, and numbers that are none.


def count(written: str) -> int | None:
    """The whole number that a text holds; None if it holds something else."""
    return whole(written, _HUGE)
