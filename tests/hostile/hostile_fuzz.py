"""Strategies for hostile messages: nearly correct ones, and values that break careless parsers."""

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def mostly(usual: T, otherwise: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """The usual, and now and then something else: a message that is wrong in every field is soon refused."""
    return st.integers(0, 9).flatmap(lambda number: otherwise if number == 9 else st.just(usual))


BORDERS = [0, 1, -1, 2**31 - 1, 2**31, 2**31 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400, -(10**400)]
integers = st.sampled_from(BORDERS) | st.integers()
SMALL_AND_LARGE = [5e-324, 2.2250738585072014e-308, 1e-9, 1e308, -0.0, math.inf, math.nan]
"""Numbers that are above 0 or finite, and no longer after one division or multiplication."""

numbers = integers | st.floats() | st.sampled_from(SMALL_AND_LARGE)
# Half a surrogate pair is what JSON can say and UTF-8 cannot; a host list has its lines, a header its ends.
ODD_TEXTS = ["", " ", "\ud800", "a\nb", "a\r\nb", "a\0b", "a b", "..", "x" * 300, "é" * 254, "\u202e"]
texts = st.sampled_from(ODD_TEXTS) | st.text(max_size=20)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(leaves, lambda some: st.lists(some, max_size=3) | st.dictionaries(texts, some, max_size=3))

ODD: list[Any] = [*BORDERS, *ODD_TEXTS, None, True, False, 1.5, math.nan, math.inf, [], {}, ["\ud800"], ["a\nb"], [1]]
DEPTHS = [10, 990, 1500, 100_000]

Path = tuple[str, ...]


def _paths(message: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    for name, value in message.items():
        yield (*above, name)
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))


def _part(message: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The object there; one that is none any more changes nothing."""
    there: Any = message
    for step in path:
        there = there.get(step) if isinstance(there, dict) else None
    return there if isinstance(there, dict) else {}


def each_field_odd(honest: dict[str, Any]) -> Iterator[bytes]:
    """An honest message with each odd value in the place of each field, one at a time, and nested ever deeper."""
    for (*above, name), value in itertools.product(_paths(honest), ODD):
        message = copy.deepcopy(honest)
        _part(message, above)[name] = value
        yield json.dumps(message).encode()
    for depth in DEPTHS:
        yield deep(json.dumps(honest), depth)


@st.composite
def bent(draw: st.DrawFn, honest: dict[str, Any]) -> dict[str, Any]:
    """An honest message of which a field or two say something else, are missing or are new."""
    message = copy.deepcopy(honest)
    for *above, name in draw(st.lists(st.sampled_from(list(_paths(honest))), min_size=1, max_size=2)):
        _bend(draw, _part(message, above), name)
    return message


def _bend(draw: st.DrawFn, there: dict[str, Any], name: str) -> None:
    match draw(st.integers(0, 9)):
        case 0:
            there.pop(name, None)
        case 1:
            there[draw(texts)] = draw(values)
        case 2:
            there[name] = [there.get(name), draw(leaves)]
        case _:
            there[name] = draw(values)


@st.composite
def spoken(draw: st.DrawFn, honest: dict[str, Any]) -> bytes:
    """A bent message as bytes, now and then with something done to those as well."""
    text = json.dumps(draw(bent(honest)))
    ways: list[Callable[[], bytes]] = [
        text.encode,
        lambda: text.encode()[: draw(st.integers(0, len(text)))],
        lambda: text.encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + text.encode(),
        lambda: text.encode() + draw(st.binary(min_size=1, max_size=5)),
        lambda: draw(st.binary(max_size=200)),
        lambda: deep(text, draw(st.sampled_from(DEPTHS))),
        lambda: text.replace('"', "\udcff", 1).encode(errors="surrogateescape"),
    ]
    return ways[draw(mostly(0, st.integers(1, len(ways) - 1)))]()


def deep(text: str, depth: int) -> bytes:
    """The message with a new first field that is nested so deeply."""
    return b'{"deep":' + b"[" * depth + b"]" * depth + b"," + text.encode()[1:]
