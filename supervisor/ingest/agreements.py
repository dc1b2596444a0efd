"""The part of hellos and reports of training processes that is about agreed steps."""

from typing import Annotated

import msgspec
from msgspec import Meta

from servicekit.bounds import LONGEST_SECONDS, pace
from supervisor.domain.agreement import Answer, AnswerKind, Purpose
from supervisor.fanout.ranks import Measurements, Statement

_PURPOSES = frozenset(Purpose)

Epoch = Annotated[int, Meta(ge=0, le=2**31)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
Revision = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Agrees = Annotated[list[Annotated[str, Meta(max_length=63)]], Meta(max_length=8)]
WorldSize = Annotated[int, Meta(ge=1, le=65536)]


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement that a process holds when it connects."""

    epoch: Epoch
    purpose: Annotated[str, Meta(max_length=63)]
    step: Step | None = None
    committed: bool = False


class AgreeingProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every hello and report may have: what the process can agree to, and its pace. See `RankState`.

    `revision` grows whenever one of these, or the rank, changes. It is None from an older SDK.
    """

    revision: Revision | None = None
    agrees: Agrees | None = None
    collective: bool | None = None
    world_size: WorldSize | None = None
    step_seconds: Seconds | None = None

    def statement(self, held: Held | None = None) -> Statement:
        """What the process says about itself. A purpose of a later version is left out."""
        return Statement(
            purposes=None if self.agrees is None else frozenset(Purpose(each) for each in _PURPOSES & set(self.agrees)),
            collective=self.collective,
            world_size=self.world_size,
            step_seconds=pace(self.step_seconds),
            epoch=0 if held is None else held.epoch,
        )


class AgreementAnswer(AgreeingProcess, frozen=True, kw_only=True):
    """The fields of a report of kind `agreement`: `step` is the rank's own, `at_step` that of the agreement."""

    epoch: Epoch | None = None
    purpose: Annotated[str, Meta(max_length=63)] | None = None
    at_step: Step | None = None
    answer: AnswerKind | None = None
    step: Step | None = None
    checkpoint_seconds: Seconds | None = None
    unread_seconds: Seconds | None = None

    def answered(self, now: float) -> Answer | None:
        """The answer, received at `now`; None from a rank that does not know its step."""
        if self.epoch is None or self.answer is None or self.step is None:
            return None
        return Answer(epoch=self.epoch, at_step=self.at_step, kind=self.answer, step=self.step, at=now)

    @property
    def measured(self) -> Measurements:
        return Measurements(
            step_seconds=pace(self.step_seconds),
            checkpoint_seconds=self.checkpoint_seconds,
            unread_seconds=self.unread_seconds,
        )
