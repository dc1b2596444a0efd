"""The messages between this process and the supervisor, and the values in them that a script sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .agreement import RankPosition

_MAX_ERROR = 300


class DirectiveKind(str, Enum):
    """What this process must do."""

    RUN = "RUN"
    """Continue."""
    CHECKPOINT = "CHECKPOINT"
    """Save a checkpoint and continue."""
    LEAVE = "LEAVE"
    """Save local data and exit: this worker's host will be reclaimed, and the job continues without it."""
    STOP = "STOP"
    """Save a checkpoint and exit with a non-zero code: the whole job stops and resumes later."""


@dataclass(frozen=True)
class Directive:
    """A decision of the supervisor for this process, and its reason. Generation 0 means that none was received."""

    kind: DirectiveKind
    job: str
    run: int
    generation: int
    reason: str

    @property
    def is_final(self) -> bool:
        """Whether this process must exit. `check_alive()` is False exactly then."""
        return self.kind in (DirectiveKind.LEAVE, DirectiveKind.STOP)


@dataclass(frozen=True)
class Notice:
    """A host will be reclaimed: this process's own host, or otherwise the most urgent one of the job.

    `seconds_left` is counted when the notice is read. It is None if the source names no time. `own`: it is this
    process's own host. False also from a supervisor that does not say it.
    """

    id: str
    source: str
    host: str
    seconds_left: float | None
    own: bool = False


class StepPurpose(str, Enum):
    """The action that all ranks take at the agreed step."""

    STOP = "stop"
    """Save and exit."""
    CHECKPOINT = "checkpoint"
    """Save and go on."""
    RENDEZVOUS = "rendezvous"
    """Save and hold until the elastic agent ends the process, to start another one in the next round."""
    REGROUP = "regroup"
    """Hold, and go on in the next round without a restart."""


DIRECTIVE_OF = {
    StepPurpose.STOP: DirectiveKind.STOP,
    StepPurpose.CHECKPOINT: DirectiveKind.CHECKPOINT,
    StepPurpose.RENDEZVOUS: DirectiveKind.STOP,
}
"""The directive that takes effect at the agreed step. The others leave the present one in effect."""


class RankAnswer(str, Enum):
    """A rank's answer to an agreement."""

    DECLINED = "declined"
    """The step is unknown (a poll), or this rank has already finished it."""
    ACCEPTED = "accepted"
    """This rank will not pass the step without knowing the outcome."""
    COMMITTED = "committed"
    """This rank will stop or save at the step."""
    PASSED = "passed"
    """This rank has gone past the step, and will not stop or save for this agreement."""
    REACHED = "reached"
    """This rank has stopped or saves at the step."""
    HELD = "held"
    """This rank waits at the step, outside any collective, for the next round."""


@dataclass(frozen=True)
class StepAgreement:
    """A poll, a proposal or a commit. `epoch` numbers the attempts of a job and is never used again."""

    epoch: int
    purpose: StepPurpose
    step: int | None
    committed: bool


class MalformedDirective(ValueError):  # noqa: N818 - the name describes the line
    """A line of type directive lacks a required field. It has no effect."""


@dataclass(frozen=True)
class DirectiveLine:
    """A validated line of type `directive`. Durations are seconds from its receipt.

    `max_wait` is how long a job that is stopped waits to be resumed, None if there is no limit or it is not known.
    """

    directive: Directive
    act_in: float
    seconds_left: float | None
    notice: Notice | None
    release: bool
    agreement: StepAgreement | None = None
    max_wait: float | None = None


def parse_line(message: Mapping[str, Any]) -> DirectiveLine:
    """Validate a message of type `directive`. Unknown fields are ignored. Raises MalformedDirective."""
    try:
        directive = Directive(
            kind=DirectiveKind(message["directive"]),
            job=typed(message["job"], str),
            run=typed(message["run"], int),
            generation=typed(message["generation"], int),
            reason=typed(message["reason"], str),
        )
        found, notice = message.get("notice"), None
        if found is not None:
            notice = Notice(
                id=typed(found["id"], str),
                source=typed(found["source"], str),
                host=typed(found["host"], str),
                seconds_left=_seconds_or_none(found.get("seconds_left")),
                own=typed(found.get("own", False), bool),
            )
        return DirectiveLine(
            directive,
            act_in=_seconds(message["act_in"]),
            seconds_left=_seconds_or_none(message.get("seconds_left")),
            notice=notice,
            release=typed(message.get("release", False), bool),
            agreement=parse_agreement(message.get("agreement")),
            max_wait=_seconds_or_none(message.get("max_wait")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        # OverflowError: JSON allows integers that no float can hold.
        raise MalformedDirective(f"{type(error).__name__}: {error}") from error


def parse_agreement(value: Mapping[str, Any] | None) -> StepAgreement | None:
    """Read the field `agreement` of a line. Raises KeyError, TypeError or ValueError."""
    if value is None:
        return None
    epoch, step, committed = value["epoch"], value["step"], value["committed"]
    if type(epoch) is not int or type(committed) is not bool or not (step is None or type(step) is int):
        raise TypeError(f"{value!r} is not an agreement")
    if committed and step is None:
        raise ValueError("a committed agreement without a step")
    return StepAgreement(epoch, StepPurpose(value["purpose"]), step, committed)


class ProcessReportKind(str, Enum):
    """The kinds of reports of a training process."""

    RANK = "rank"
    SAVED = "saved"
    KEPT = "kept"
    FAILED = "failed"
    LEFT = "left"
    RESUMED = "resumed"
    AGREEMENT = "agreement"


@dataclass(frozen=True)
class RankMember:
    """The place of this process among the ranks of its job, and how it can stop with them.

    `step_seconds` is about how long a step takes, `start_seconds` how long it took from the start of the process to its
    first step, and `change_seconds` how long it takes to enter another round in process, all None if that is unknown.
    `revision` grows with each change, as two threads report: the supervisor takes no older place than it has.
    """

    rank: int | None = None
    world_size: int | None = None
    agrees: tuple[StepPurpose, ...] = ()
    collective: bool = False
    step_seconds: float | None = None
    start_seconds: float | None = None
    change_seconds: float | None = None
    revision: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of a message."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "agrees": [purpose.value for purpose in self.agrees],
            "collective": self.collective,
            "step_seconds": self.step_seconds,
            "start_seconds": self.start_seconds,
            "change_seconds": self.change_seconds,
            "revision": self.revision,
        }


@dataclass(frozen=True)
class TrainingPace:
    """How fast this process trains and saves, in seconds; None where that is not known yet.

    `unread_seconds` is the time since the step last changed.
    """

    step_seconds: float | None = None
    checkpoint_seconds: float | None = None
    unread_seconds: float | None = None


@dataclass(frozen=True)
class AgreementReply:
    """An answer to an agreement. `step` is the number of steps that are finished now."""

    position: RankPosition
    step: int | None
    pace: TrainingPace

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
class ProcessHello:
    """The first message of a stream. `step` is the last one that was saved."""

    member: RankMember
    step: int | None = None
    position: RankPosition | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the message."""
        position, agreement = self.position, None
        if position is not None:
            agreement = {
                "epoch": position.agreement.epoch,
                "purpose": position.agreement.purpose.value,
                "step": position.agreement.step,
                "committed": position.is_committed,
            }
        return {**self.member.fields(), "step": self.step, "agreement": agreement}


@dataclass(frozen=True)
class ProcessReport:
    """A report that is repeated until it is confirmed. `generation` is that of the directive it answers.

    `checkpoint_seconds` is how long a saved checkpoint took; None is unknown. `error` is why none was saved, in a
    report that says so: one of kind `failed`, or of kind `left` if nothing was saved after it.
    """

    kind: ProcessReportKind
    member: RankMember
    step: int | None
    generation: int
    reply: AgreementReply | None = None
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


def _seconds_or_none(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def _seconds(value: Any) -> float:
    """Return a finite number of seconds, at least 0: a negative one means that the event is already due."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a number of seconds")
    return max(0.0, float(value))


def typed(value: Any, kind: type) -> Any:
    """Return a value of exactly this type. Raises TypeError for another type, also for a subclass."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
