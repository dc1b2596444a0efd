"""Defines the agreement of a run's ranks on the step at which all of them stop, or save and continue."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.ids import Host, Instant


class Purpose(StrEnum):
    """The action of all ranks at an agreed step.

    STOP: save and exit. CHECKPOINT: save and continue. RENDEZVOUS: save and wait for the end of the process, because an
    elastic agent starts another one in the next round. REGROUP: wait for the next round, and continue in it.
    """

    STOP = "stop"
    CHECKPOINT = "checkpoint"
    RENDEZVOUS = "rendezvous"
    REGROUP = "regroup"


MEMBERSHIP = frozenset({Purpose.RENDEZVOUS, Purpose.REGROUP})
"""The purposes of agreements after which the members of a rendezvous change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The members that train together, one for each host, until the next round.

    `number` grows with each round of a run, and begins at 1 again with the next run. `members` are the ids of the
    elastic agents, `hosts` their hosts in the same order: the first one holds the store. `in_process`: the training
    processes continue and build a new process group; otherwise their agents start new ones. `starting` are hosts
    outside of the round: their agents start processes now, which then wait to join in process. `since` is when it was
    decided.
    """

    number: int
    run: int
    members: tuple[str, ...]
    hosts: tuple[Host, ...]
    in_process: bool = False
    starting: tuple[Host, ...] = ()
    since: Instant

    @property
    def is_whole(self) -> bool:
        """Whether there are members and each has a host of its own. A person may have edited the stored round."""
        return 0 < len(self.members) == len(self.hosts) == len(set(self.hosts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One attempt to agree on a step, or its result.

    Without a `step` it is a poll: each rank answers with its present step. With one it is a proposal, until it is
    committed. `epoch` numbers the attempts of a job and is never used again. `since` is when this poll, proposal or
    commit was decided; `began` is the start of the first attempt, from which the time-out counts. `following` is the
    round that begins in process after the step if nothing changes from the poll until then: its processes can connect
    early. None if there is none.
    """

    epoch: int
    purpose: Purpose
    run: int
    step: int | None = None
    committed: bool = False
    since: Instant
    began: Instant
    following: Round | None = None


class AnswerKind(StrEnum):
    """The kind of a rank's answer.

    ACCEPTED: it is below the proposed step. DECLINED: it names its step, as the answer to a poll or because it is past
    the proposed step. COMMITTED: it will act at the step. PASSED: it has gone on past the step. REACHED: it has stopped
    or is saving at the step. HELD: it waits at the step, outside any collective, for what follows.
    """

    ACCEPTED = "accepted"
    DECLINED = "declined"
    COMMITTED = "committed"
    PASSED = "passed"
    REACHED = "reached"
    HELD = "held"


_STAGES = (
    AnswerKind.DECLINED,
    AnswerKind.ACCEPTED,
    AnswerKind.COMMITTED,
    AnswerKind.PASSED,
    AnswerKind.REACHED,
    AnswerKind.HELD,
)
"""The order in which a rank gives its answers to one proposal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswer:
    """A rank's answer to the poll, proposal or commit of `epoch` and `at_step`, received at `at` (Unix seconds).

    `step` is the number of steps that the rank had finished.
    """

    epoch: int
    at_step: int | None
    kind: AnswerKind
    step: int
    at: float

    def follows(self, other: "StepAnswer") -> bool:
        """Whether the rank gave this answer after `other`, or it is the same.

        Answers may arrive twice and out of order.
        """
        # These grow from each answer of a rank to its next one: a poll comes before the proposal of a step.
        own, others = (
            (answer.epoch, answer.at_step is not None, _STAGES.index(answer.kind)) for answer in (self, other)
        )
        return own >= others

    def is_to(self, agreement: Agreement) -> bool:
        """Whether this is an answer to `agreement`, and not to another attempt or another step."""
        return (self.epoch, self.at_step) == (agreement.epoch, agreement.step)
