"""Parses the environment into a frozen dataclass of settings."""

import dataclasses
import enum
import math
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")


class BadValueError(ValueError):
    """The value of one field is invalid. Checks of one field in `__post_init__` raise it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class SettingsError(ValueError):
    """A setting is unknown, missing or invalid. A person has to correct the environment.

    Attributes:
        variable: The environment variable, or `PREFIX_*` where several contradict each other.
    """

    def __init__(self, variable: str, why: str) -> None:
        super().__init__(f"{variable}: {why}")
        self.variable = variable


def load(cls: type[T], prefix: str, environ: Mapping[str, str]) -> T:
    """Reads a frozen dataclass from the variables `PREFIX_FIELD`.

    A field's annotation may carry bounds, unit and reason:
    `Annotated[float, msgspec.Meta(ge=0.1, le=1.0, description="…")]`. The parts of a tuple are separated by commas; an
    empty value stands for None where None is allowed. `__post_init__` checks what bounds cannot: it raises a
    `BadValueError` about one field, and a `ValueError` about several.

    Args:
        cls: The dataclass; a field without a default is required.
        prefix: With or without a final underscore.
        environ: Usually `os.environ`.

    Raises:
        SettingsError: A variable with the prefix is unknown, a required one is missing, or a value is invalid.
    """
    prefix = prefix.removesuffix("_") + "_"
    given = {name: text for name, text in environ.items() if name.startswith(prefix)}
    fields = {prefix + field.name.upper(): field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]  # A dataclass.
    missing = dataclasses.MISSING
    required = {name for name, one in fields.items() if one.default is missing and one.default_factory is missing}
    for variable in sorted(given.keys() - fields.keys()):
        raise SettingsError(variable, "no such setting")
    for variable in sorted(required - given.keys()):
        raise SettingsError(variable, "must be set")
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {fields[name].name: _value(name, text, hints[fields[name].name]) for name, text in given.items()}
    try:
        return cls(**values)
    except BadValueError as error:
        raise SettingsError(prefix + error.field.upper(), error.why) from error
    except ValueError as error:
        raise SettingsError(prefix + "*", str(error)) from error


def check_field(field: str, text: str, parse: Callable[[str], object]) -> None:
    """Checks the text of one field with a function that raises a `ValueError`.

    Raises:
        BadValueError: The function has raised.
    """
    try:
        parse(text)
    except ValueError as error:
        raise BadValueError(field, str(error)) from error


def describe(cls: type[Any], prefix: str) -> str:
    """Returns the text for `--help`: every variable with its default, as in the environment, and its description."""
    prefix = prefix.removesuffix("_") + "_"
    hints = typing.get_type_hints(cls, include_extras=True)
    lines = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        given = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = ",".join(str(part) for part in given) if isinstance(given, tuple) else str(given)
        if given is dataclasses.MISSING:
            default = "must be set"
        elif given is None or not default:
            default = "empty"
        notes = [note.description for note in typing.get_args(hints[field.name])[1:] if isinstance(note, msgspec.Meta)]
        text = " ".join(note for note in notes if note)
        lines.append(f"  {prefix}{field.name.upper()} ({default})\n      {text}")
    return "\n".join(lines)


def _value(variable: str, text: str, hint: Any) -> Any:
    kind = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if not text and type(None) in typing.get_args(kind):
        return None
    raw = [part.strip() for part in text.split(",") if part.strip()] if typing.get_origin(kind) is tuple else text
    try:
        value = msgspec.convert(raw, hint, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise SettingsError(variable, _why(raw, hint) or str(error)) from error
    # NaN is a float that passes every bound.
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingsError(variable, "must be a finite number")
    return value


def _why(raw: Any, hint: Any) -> str:
    """Explains to people why a value is invalid; empty if the library's message is as good."""
    kind = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if isinstance(raw, list):
        part = typing.get_args(kind)[0]
        return next((_why(each, part) for each in raw if not _converts(each, part)), "")
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"{raw!r} is none of {', '.join(str(each.value) for each in kind)}"
    if kind is bool:
        return f"{raw!r} is neither true nor false"
    if kind not in (int, float):
        return ""
    if not _converts(raw, kind):
        return f"{raw!r} is not a {'whole number' if kind is int else 'number'}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    notes = [note for note in typing.get_args(hint)[1:] if isinstance(note, msgspec.Meta)]
    found = [(text, getattr(note, name)) for note in notes for name, text in words.items()]
    return f"{raw} is not {' and '.join(f'{text} {bound:g}' for text, bound in found if bound is not None)}"


def _converts(raw: Any, hint: Any) -> bool:
    try:
        msgspec.convert(raw, hint, strict=False, dec_hook=_path)
    except msgspec.ValidationError:
        return False
    return True


def _path(kind: type[Any], value: Any) -> Any:
    """Decodes the types that msgspec does not know."""
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"a setting cannot be a {kind.__name__}")
