"""What the supervisor tells a launcher, and what the launcher tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Mapping


class Verb(Enum):
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


@dataclass(frozen=True)
class Order:
    """One line of type ``order``: the whole of what should be so."""

    generation: int
    verb: Verb
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
            verb=Verb(line["order"]),
            run=_number(line["run"]),
            stopping=_of(bool, line.get("stopping", False)),
            workers=_number(line["workers"]),
            hosts=_names(line["hosts"]),
            exclusions=_names(line["exclusions"]),
            phase=_of(str, line["phase"]),
            reason=_of(str, line.get("reason", "")),
            token=_of(str, line.get("token") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedOrder(f"malformed order: {type(error).__name__}: {error}") from error
    if order.verb is Verb.RUN and order.run < 1:
        raise MalformedOrder("malformed order: run number below 1")
    return order


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of ours")
    return value


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_of(str, name) for name in _of(list, value))


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
