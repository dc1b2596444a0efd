"""Settings from the environment."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from servicekit.address import Address, is_loopback, parse
from servicekit.settings import SettingsError, check_field, load


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    seconds: Annotated[float, msgspec.Meta(ge=0.1, le=1.0, description="Seconds.")] = 1.0
    limit: Annotated[int, msgspec.Meta(ge=1)] = 10
    mode: Mode = Mode.FAST
    path: Path | None = None
    parts: tuple[Mode, ...] = ()
    anything: float = 0.0
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.limit == 13:
            raise ValueError("13 with that name is too much")
        check_field("name", self.name, _not_bad)


def _not_bad(name: str) -> None:
    if name == "bad":
        raise ValueError(f"{name!r} is not a good name")


def test_values_are_converted() -> None:
    environ = {
        "EXAMPLE_NAME": "n",
        "EXAMPLE_SECONDS": "0.5",
        "EXAMPLE_LIMIT": "3",
        "EXAMPLE_MODE": "slow",
        "EXAMPLE_PATH": "some/file",
        "EXAMPLE_PARTS": "slow, fast,",
        "EXAMPLE_VERBOSE": "true",
        "OTHER_NAME": "not ours",
    }
    expected = Example("n", 0.5, 3, Mode.SLOW, Path("some/file"), (Mode.SLOW, Mode.FAST), verbose=True)
    assert load(Example, "EXAMPLE_", environ) == expected
    assert load(Example, "EXAMPLE", environ) == expected


def test_defaults_and_empty_values() -> None:
    """An absent variable leaves the default, an empty one means None where None is allowed."""
    assert load(Example, "EXAMPLE", {"EXAMPLE_NAME": "", "EXAMPLE_PATH": "", "EXAMPLE_PARTS": ""}) == Example("")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EXAMPLE_SECONDS", "2"),
        ("EXAMPLE_SECONDS", "0"),
        ("EXAMPLE_SECONDS", "soon"),
        ("EXAMPLE_SECONDS", ""),
        ("EXAMPLE_ANYTHING", "nan"),
        ("EXAMPLE_ANYTHING", "inf"),
        ("EXAMPLE_LIMIT", "0"),
        ("EXAMPLE_LIMIT", "1.5"),
        ("EXAMPLE_MODE", "medium"),
        ("EXAMPLE_PARTS", "fast,medium"),
        ("EXAMPLE_VERBOSE", "perhaps"),
        ("EXAMPLE_NAMES", "unknown"),
    ],
)
def test_a_bad_value_or_unknown_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable) as raised:
        load(Example, "EXAMPLE", {"EXAMPLE_NAME": "n", variable: value})
    assert raised.value.variable == variable


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("EXAMPLE_MODE", "medium", "'medium' is none of fast, slow"),
        ("EXAMPLE_PARTS", "fast,medium", "'medium' is none of fast, slow"),
        ("EXAMPLE_SECONDS", "soon", "'soon' is not a number"),
        ("EXAMPLE_SECONDS", "2", "2 is not at least 0.1 and at most 1"),
        ("EXAMPLE_LIMIT", "1.5", "'1.5' is not a whole number"),
        ("EXAMPLE_LIMIT", "0", "0 is not at least 1"),
        ("EXAMPLE_VERBOSE", "perhaps", "'perhaps' is neither true nor false"),
        ("EXAMPLE_NAME", "bad", "'bad' is not a good name"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_in_words(variable: str, value: str, why: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(Example, "EXAMPLE", {"EXAMPLE_NAME": "n", variable: value})
    assert str(raised.value) == f"{variable}: {why}"


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="EXAMPLE_NAME"):
        load(Example, "EXAMPLE", {})


def test_values_that_contradict_each_other() -> None:
    with pytest.raises(SettingsError, match="13 with that name"):
        load(Example, "EXAMPLE", {"EXAMPLE_NAME": "n", "EXAMPLE_LIMIT": "13"})


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80), True),
        ("[::1]:0", Address("::1", 0), True),
        ("localhost:65535", Address("localhost", 65535), True),
        ("supervisor.default:443", Address("supervisor.default", 443), False),
        ("0.0.0.0:1", Address("0.0.0.0", 1), False),
        ("localhost.example:1", Address("localhost.example", 1), False),
    ],
)
def test_addresses(text: str, address: Address, loopback: bool) -> None:  # noqa: FBT001 - a table's column
    """An address is read, written the same way, and known to be loopback or not."""
    assert parse(text) == address
    assert str(address) == text
    assert is_loopback(address.host) is loopback


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:http", "host:65536", "::1:80", "host:-1", "host:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|port between"):
        parse(text)
