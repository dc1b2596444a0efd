"""The messages between the supervisor and a launcher."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Mapping


class OrderKind(Enum):
    """What the launcher must do with its command."""

    RUN = "run"
    WAIT = "wait"
    END = "end"


class Result(Enum):
    """How the job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


class MalformedOrder(Exception):  # noqa: N818 - the name describes the line.
    """A line of type ``order`` is invalid. It is ignored; the next one may be valid."""


TIMED_OUT_PHASE = "TimedOut"

_MAX_NUMBER = 2**31
# As in the contract. JSON allows half a surrogate pair, a file name does not.
_HOST = re.compile(r"[^\s:\ud800-\udfff]{1,253}")
_TOKEN = re.compile(r"[!-~]*")


@dataclass(frozen=True)
class Order:
    """A line of type ``order``: the complete desired state, and what a waiting job waits for, as a sentence."""

    generation: int
    kind: OrderKind
    run: int = 0
    stopping: bool = False
    workers: int = 0
    hosts: tuple[str, ...] = ()
    exclusions: tuple[str, ...] = ()
    phase: str = ""
    reason: str = ""
    waits_for: str = ""
    token: str = field(default="", repr=False)


def order_of(line: Mapping[str, Any]) -> Order:
    """Parse a line of type ``order``.

    Raises:
        MalformedOrder: A field is missing or has the wrong type.
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
            waits_for=_of(str, line.get("waits_for", "")),
            token=_text(line.get("token") or "", _TOKEN),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedOrder(f"malformed order: {type(error).__name__}: {error}") from error
    if order.kind is OrderKind.RUN and order.run < 1:
        raise MalformedOrder("malformed order: run number below 1")
    return order


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _number(value: Any) -> int:
    # The supervisor refuses reports with larger numbers.
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError("not a number in the allowed range")
    return value


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_text(name, _HOST) for name in _of(list, value))


def _text(value: Any, allowed: re.Pattern[str]) -> str:
    """Check a text that becomes a line of a file."""
    if not allowed.fullmatch(_of(str, value)):
        raise ValueError("invalid characters in a host or token")  # The text is not shown: a token is secret.
    return str(value)


@dataclass(frozen=True)
class Report:
    """The launcher's present state, as it is sent."""

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
        """Return the fields of the contract, without ``job`` and ``instance``."""
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
    """The request of the job, sent in every hello."""

    name: str
    framework: str
    min_workers: int
    max_workers: int
    requested_workers: int
    max_wait_seconds: float
    launcher_host: str | None
    on_loss: str = "shrink"
    worker_multiple: int = 1

    def hello(self, instance: str, report: Report) -> dict[str, Any]:
        """Return the hello of the contract."""
        return {
            "job": self.name,
            "instance": instance,
            "framework": self.framework,
            "min_workers": self.min_workers,
            "max_workers": self.max_workers,
            "requested_workers": self.requested_workers,
            "max_wait_seconds": self.max_wait_seconds,
            "launcher_host": self.launcher_host,
            "on_loss": self.on_loss,
            "worker_multiple": self.worker_multiple,
            "report": report.fields(),
        }
