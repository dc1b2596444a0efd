"""What the supervisor tells a launcher, and what the launcher tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Mapping


class OrderKind(Enum):
    """What is to become of the command."""

    RUN = "run"
    WAIT = "wait"
    END = "end"


class Result(Enum):
    """How the job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


class MalformedOrder(Exception):  # noqa: N818 - named for what the line is.
    """A line of type ``order`` that says nothing usable: ignore it, the next one may."""


TIMED_OUT_PHASE = "TimedOut"

_MAX_NUMBER = 2**31
# As the contract has them. Half a surrogate pair, which JSON can say, is in no file.
_HOST = re.compile(r"[^\s:\ud800-\udfff]{1,253}")
_TOKEN = re.compile(r"[!-~]*")


@dataclass(frozen=True)
class Order:
    """One line of type ``order``: the whole of what should be so."""

    generation: int
    kind: OrderKind
    run: int = 0
    stopping: bool = False
    workers: int = 0
    hosts: tuple[str, ...] = ()
    exclusions: tuple[str, ...] = ()
    phase: str = ""
    reason: str = ""
    token: str = field(default="", repr=False)


def order_of(line: Mapping[str, Any]) -> Order:
    """Read a line of type ``order``.

    Raises:
        MalformedOrder: a field is missing or has another type.
    """
    try:
        order = Order(
            generation=_number(line["generation"]),
            kind=OrderKind(line["order"]),
            run=_number(line["run"]),
            stopping=_of(bool, line.get("stopping", False)),
            workers=_number(line["workers"]),
            hosts=_names(line["hosts"]),
            exclusions=_names(line["exclusions"]),
            phase=_of(str, line["phase"]),
            reason=_of(str, line.get("reason", "")),
            token=_text(line.get("token") or "", _TOKEN),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedOrder(f"malformed order: {type(error).__name__}: {error}") from error
    if order.kind is OrderKind.RUN and order.run < 1:
        raise MalformedOrder("malformed order: run number below 1")
    return order


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _number(value: Any) -> int:
    # Above the most, no report that repeats the number would be taken.
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError("no number of ours")
    return value


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_text(name, _HOST) for name in _of(list, value))


def _text(value: Any, allowed: re.Pattern[str]) -> str:
    """A text that goes into a file, where each has its line."""
    if not allowed.fullmatch(_of(str, value)):
        raise ValueError("a host or token that no file can hold")  # Not shown: a token is a secret.
    return str(value)


@dataclass(frozen=True)
class Report:
    """The launcher's present state, as it travels."""

    revision: int = 0
    hosts: tuple[str, ...] = ()
    run: int = 0
    running: bool = False
    exit_code: int | None = None
    restarts: int = 0
    applied: int = 0
    ending: bool = False
    result: Result | None = None

    def fields(self) -> dict[str, Any]:
        """Spell the report as the contract does, without ``job`` and ``instance``."""
        return {
            "revision": self.revision,
            "hosts": list(self.hosts),
            "run": self.run,
            "running": self.running,
            "exit_code": self.exit_code,
            "restarts": self.restarts,
            "applied": self.applied,
            "ending": self.ending,
            "result": self.result.value if self.result else None,
        }


@dataclass(frozen=True)
class Job:
    """What the job asks for, said in every hello."""

    name: str
    framework: str
    min_workers: int
    max_workers: int
    requested_workers: int
    max_wait_seconds: float
    launcher_host: str | None

    def hello(self, instance: str, report: Report) -> dict[str, Any]:
        """Spell the hello as the contract does."""
        return {
            "job": self.name,
            "instance": instance,
            "framework": self.framework,
            "min_workers": self.min_workers,
            "max_workers": self.max_workers,
            "requested_workers": self.requested_workers,
            "max_wait_seconds": self.max_wait_seconds,
            "launcher_host": self.launcher_host,
            "report": report.fields(),
        }
