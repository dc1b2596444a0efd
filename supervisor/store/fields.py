"""The form of a value in a custom resource: names in camelCase, instants in RFC 3339, and no field for None.

The definitions in charts/elastic-job-supervisor/files/crds/ list the fields. Instants are rounded to a microsecond.
"""

import re
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from servicekit.bounds import instant_of, nearest_seconds
from supervisor.domain.agreement import Agreement, Round
from supervisor.domain.ids import Instant
from supervisor.domain.job import Acknowledgement, CheckpointRequest, Decision, Growth, Observed, Stop, UserRequest
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.conditions import Condition

Fields = dict[str, Any]
"""A JSON object."""

T = TypeVar("T")

_WITH_INSTANTS = (
    Acknowledgement,
    Agreement,
    CheckpointRequest,
    Condition,
    Decision,
    Growth,
    Observed,
    ReclaimNotice,
    Round,
    Stop,
    UserRequest,
)
_INSTANTS = {
    name
    for kind in _WITH_INSTANTS
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if Instant in (hint, *get_args(hint))
}


def encode(value: object) -> Fields:
    """Returns the fields of a dataclass.

    Raises:
        TypeError: One of them has no form in JSON.
    """
    fields: Fields = _encoded(msgspec.to_builtins(value))
    return fields


def decode(fields: Fields, kind: type[T]) -> T:
    """Reads a dataclass and ignores fields that it does not have.

    Raises:
        msgspec.ValidationError: A field is missing or holds something else.
    """
    return msgspec.convert(_decoded(fields), kind)


def _encoded(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {_camel_case(key): _encoded(each, key) for key, each in value.items() if each is not None}
        case [dict(), *_]:
            return [_encoded(each) for each in value]
        case tuple():  # JSON has only lists, and what is written is compared with what is read.
            return list(value)
        case float() | int() if name in _INSTANTS:
            return msgspec.to_builtins(instant_of(value))
    return value


def _decoded(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {(name := _snake_case(key)): _decoded(each, name) for key, each in value.items()}
        case [dict(), *_]:
            return [_decoded(each) for each in value]
        case str() if name in _INSTANTS:
            return nearest_seconds(msgspec.convert(value, datetime))
    return value


@cache
def _camel_case(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


@cache
def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda found: "_" + found[0].lower(), name)
