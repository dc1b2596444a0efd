"""The values that the parts of kubeai-run exchange: orders and reports, events of its threads, and its exit codes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Mapping

from kubeai.elastic.messages import typed

TIMED_OUT_PHASE = "TimedOut"

_MAX_NUMBER = 2**31
# As in the contract. JSON allows half a surrogate pair, a file name does not.
_HOST = re.compile(r"[^\s:\ud800-\udfff]{1,253}")
_TOKEN = re.compile(r"[!-~]*")


class RunExitCode(IntEnum):
    """Exit codes of kubeai-run. The command's own exit code is never passed on."""

    SUCCEEDED = 0
    USAGE = 64
    UNREACHED = 69
    BACK_OFF_LIMIT = 70
    NAME_IS_LIVE = 73
    TIMED_OUT = 75
    CONFIG = 78
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODE_MEANINGS = {
    RunExitCode.SUCCEEDED: "the command exited with 0",
    RunExitCode.USAGE: "the command line, or a file that it names, is invalid",
    RunExitCode.UNREACHED: "the supervisor could not be reached at the start, or refused the job",
    RunExitCode.BACK_OFF_LIMIT: "the command failed more often than --back-off-limit allows",
    RunExitCode.NAME_IS_LIVE: "another kubeai-run with this job name is running",
    RunExitCode.TIMED_OUT: "the job waited longer than --max-wait-time for resources",
    RunExitCode.CONFIG: "a setting in the environment is invalid",
    RunExitCode.INTERRUPTED: "ended by SIGINT",
    RunExitCode.TERMINATED: "ended by SIGTERM, or by the supervisor",
}


class RunOrderKind(Enum):
    """What the launcher must do with its command."""

    RUN = "run"
    WAIT = "wait"
    END = "end"


class JobResult(Enum):
    """How the job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"


class MalformedOrder(Exception):  # noqa: N818 - the name describes the line.
    """A line of type ``order`` is invalid. It is ignored; the next one may be valid."""


@dataclass(frozen=True)
class RunOrder:
    """A line of type ``order``: the complete desired state, and what a waiting job waits for, as a sentence."""

    generation: int
    kind: RunOrderKind
    run: int = 0
    stopping: bool = False
    workers: int = 0
    hosts: tuple[str, ...] = ()
    exclusions: tuple[str, ...] = ()
    phase: str = ""
    reason: str = ""
    waits_for: str = ""
    token: str = field(default="", repr=False)


def order_of(line: Mapping[str, Any]) -> RunOrder:
    """Parse a line of type ``order``.

    Raises:
        MalformedOrder: A field is missing or has the wrong type.
    """
    try:
        order = RunOrder(
            generation=_number(line["generation"]),
            kind=RunOrderKind(line["order"]),
            run=_number(line["run"]),
            stopping=typed(line.get("stopping", False), bool),
            workers=_number(line["workers"]),
            hosts=tuple(_text(name, _HOST) for name in typed(line["hosts"], list)),
            exclusions=tuple(_text(name, _HOST) for name in typed(line["exclusions"], list)),
            phase=typed(line["phase"], str),
            reason=typed(line.get("reason", ""), str),
            waits_for=typed(line.get("waits_for", ""), str),
            token=_text(line.get("token") or "", _TOKEN),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedOrder(f"malformed order: {type(error).__name__}: {error}") from error
    if order.kind is RunOrderKind.RUN and order.run < 1:
        raise MalformedOrder("malformed order: run number below 1")
    return order


def _number(value: Any) -> int:
    # The supervisor refuses reports with larger numbers.
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError("not a number in the allowed range")
    return value


def _text(value: Any, allowed: re.Pattern[str]) -> str:
    """Return a text that is to become a line of a file. Raises ValueError for other characters."""
    if not allowed.fullmatch(typed(value, str)):
        raise ValueError("invalid characters in a host or token")  # The text is not shown: a token is secret.
    return str(value)


@dataclass(frozen=True)
class RunReport:
    """The launcher's present state, as it is sent."""

    revision: int = 0
    hosts: tuple[str, ...] = ()
    run: int = 0
    running: bool = False
    exit_code: int | None = None
    restarts: int = 0
    applied: int = 0
    ending: bool = False
    result: JobResult | None = None

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
class JobRequest:
    """The job as its user requests it: its name and its numbers of workers, sent in every hello."""

    name: str
    framework: str
    min_workers: int
    max_workers: int
    requested_workers: int
    max_wait_seconds: float
    launcher_host: str | None
    on_loss: str = "shrink"
    worker_multiple: int = 1

    def hello(self, instance: str, report: RunReport) -> dict[str, Any]:
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


class RunnerEvent:
    """Something that happened. Threads and signal handlers put events on the queue that the main thread reads."""


@dataclass(frozen=True)
class Ordered(RunnerEvent):
    """An order was received."""

    order: RunOrder


@dataclass(frozen=True)
class Lost(RunnerEvent):
    """The stream ended or could not be opened."""

    reason: str


@dataclass(frozen=True)
class Confirmed(RunnerEvent):
    """The supervisor has confirmed a report."""

    report: RunReport


@dataclass(frozen=True)
class Rejected(RunnerEvent):
    """The supervisor rejects this job: exit with this code."""

    code: RunExitCode
    reason: str


@dataclass(frozen=True)
class LogMessage(RunnerEvent):
    """A message for people."""

    text: str


@dataclass(frozen=True)
class HostsChanged(RunnerEvent):
    """The operator's host list has changed."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class CommandEnded(RunnerEvent):
    """The command and its whole group have ended, with the command's exit code or minus its signal."""

    exit_code: int


@dataclass(frozen=True)
class SignalReceived(RunnerEvent):
    """SIGTERM or SIGINT was received."""

    number: int
