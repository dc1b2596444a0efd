"""Builds the messages of this process to the supervisor: the hello of its stream, and its reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agreement import Position, Purpose

_MAX_ERROR = 300


class ReportKind(str, Enum):
    """The kinds of reports."""

    RANK = "rank"
    SAVED = "saved"
    FAILED = "failed"
    LEFT = "left"
    RESUMED = "resumed"
    AGREEMENT = "agreement"


@dataclass(frozen=True)
class Member:
    """The place of this process among the ranks of its job, and how it can stop with them.

    `step_seconds` is about how long a step takes, None if that is unknown. `revision` grows with each change, as two
    threads report: the supervisor takes no older place than it has.
    """

    rank: int | None = None
    world_size: int | None = None
    agrees: tuple[Purpose, ...] = ()
    collective: bool = False
    step_seconds: float | None = None
    revision: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of a message."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "agrees": [purpose.value for purpose in self.agrees],
            "collective": self.collective,
            "step_seconds": self.step_seconds,
            "revision": self.revision,
        }


@dataclass(frozen=True)
class Pace:
    """How fast this process trains and saves, in seconds; None where that is not known yet.

    `unread_seconds` is the time since the step last changed.
    """

    step_seconds: float | None = None
    checkpoint_seconds: float | None = None
    unread_seconds: float | None = None


@dataclass(frozen=True)
class Reply:
    """An answer to an agreement. `step` is the number of steps that are finished now."""

    position: Position
    step: int | None
    pace: Pace

    def fields(self) -> dict[str, Any]:
        """Return the fields of a report of kind `agreement`."""
        agreement = self.position.agreement
        return {
            "epoch": agreement.epoch,
            "purpose": agreement.purpose.value,
            "at_step": agreement.step,
            "answer": self.position.answer.value,
            "step": self.step,
            "step_seconds": self.pace.step_seconds,
            "checkpoint_seconds": self.pace.checkpoint_seconds,
            "unread_seconds": self.pace.unread_seconds,
        }


@dataclass(frozen=True)
class Hello:
    """The first message of a stream. `step` is the last one that was saved."""

    member: Member
    step: int | None = None
    position: Position | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the message."""
        return {**self.member.fields(), "step": self.step, "agreement": _held(self.position)}


@dataclass(frozen=True)
class Report:
    """A report that is repeated until it is confirmed. `generation` is that of the directive it answers.

    `checkpoint_seconds` is how long a saved checkpoint took; None is unknown. `error` is why none was saved, in a
    report that says so: one of kind `failed`, or of kind `left` if nothing was saved after it.
    """

    kind: ReportKind
    member: Member
    step: int | None
    generation: int
    reply: Reply | None = None
    checkpoint_seconds: float | None = None
    error: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of the message."""
        about = {
            "kind": self.kind.value,
            "step": self.step,
            "generation": self.generation,
            "checkpoint_seconds": self.checkpoint_seconds,
        }
        error = {"error": self.error} if self.error else {}
        return {**self.member.fields(), **about, **error, **({} if self.reply is None else self.reply.fields())}


def described(error: object) -> str:
    """Return an error on one line, with the name of its class, cut to what fits into a sentence."""
    text = " ".join(str(error).split())
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:_MAX_ERROR] or "no reason was given"


def _held(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    agreement = position.agreement
    return {
        "epoch": agreement.epoch,
        "purpose": agreement.purpose.value,
        "step": agreement.step,
        "committed": position.is_committed,
    }
