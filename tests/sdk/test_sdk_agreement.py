"""One rank's side of an agreement on a step, without I/O, clock or thread."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.elastic.agreement import HeldPositions, RankPosition
from kubeai.elastic.messages import RankAnswer, StepAgreement, StepPurpose, parse_agreement

from tests.testkit.properties import examples

STEPS = st.integers(0, 8)
AGREEMENTS = st.builds(
    lambda epoch, purpose, step, committed: StepAgreement(epoch, purpose, step, committed and step is not None),
    st.integers(1, 4),
    st.sampled_from(list(StepPurpose)),
    st.none() | STEPS,
    st.booleans(),
)
LINES = st.none() | AGREEMENTS


def stop(epoch: int, step: int | None = None, *, committed: bool = False) -> StepAgreement:
    return StepAgreement(epoch, StepPurpose.STOP, step, committed)


def checkpoint(epoch: int, step: int | None = None, *, committed: bool = False) -> StepAgreement:
    return StepAgreement(epoch, StepPurpose.CHECKPOINT, step, committed)


def after(*lines: StepAgreement | None, step: int | None = 0) -> HeldPositions:
    """What a rank at `step` holds after these lines."""
    held = HeldPositions()
    for line in lines:
        held = held.receive(line, step)
    return held


def answer(held: HeldPositions, purpose: StepPurpose = StepPurpose.STOP) -> RankAnswer | None:
    position = held.positions.get(purpose)
    return None if position is None else position.answer


@pytest.mark.parametrize(
    ("lines", "step", "expected"),
    [
        ([stop(1)], 4, RankAnswer.DECLINED),
        ([stop(1, 5)], 4, RankAnswer.ACCEPTED),
        ([stop(1, 5)], 5, RankAnswer.DECLINED),
        ([stop(1, 5)], None, RankAnswer.DECLINED),
        ([stop(1), stop(1, 5)], 4, RankAnswer.ACCEPTED),
        ([stop(1, 5), stop(1, 5, committed=True)], 4, RankAnswer.COMMITTED),
        ([stop(1, 5, committed=True)], 4, RankAnswer.COMMITTED),
        ([stop(1, 5, committed=True)], 5, RankAnswer.PASSED),
        ([stop(1, 5), stop(2, 9)], 4, RankAnswer.ACCEPTED),
        ([stop(1, 5), None], 4, None),
        ([stop(1, 5), stop(1, 5, committed=True), None], 4, RankAnswer.COMMITTED),
    ],
)
def test_a_rank_answers_by_its_step(
    lines: list[StepAgreement | None], step: int | None, expected: RankAnswer | None
) -> None:
    assert answer(after(*lines, step=step)) is expected


def test_a_commit_counts_also_after_the_rank_has_arrived_at_the_accepted_step() -> None:
    """It waits there, so it has not passed."""
    assert answer(after(stop(1, 5)).receive(stop(1, 5, committed=True), 5)) is RankAnswer.COMMITTED


def test_a_newer_proposal_moves_the_step() -> None:
    assert after(stop(1, 5), stop(2, 9)).gate(StepPurpose.STOP) == 9


def test_a_committed_checkpoint_stays_when_a_stop_is_proposed() -> None:
    """The other ranks may have saved already, and wait for this one."""
    held = after(checkpoint(1, 5, committed=True), stop(2, 9))
    assert (held.gate(StepPurpose.CHECKPOINT), held.gate(StepPurpose.STOP)) == (5, 9)


def test_a_proposed_checkpoint_goes_when_a_stop_is_proposed() -> None:
    assert after(checkpoint(1, 5), stop(2, 9)).gate(StepPurpose.CHECKPOINT) is None


def test_a_rank_that_went_on_does_not_stop_for_that_agreement_any_more() -> None:
    held = after(stop(1, 5))
    position = held.positions.get(StepPurpose.STOP)
    assert position is not None
    gone = held.settle(position, reached=False)
    assert answer(gone.receive(stop(1, 5, committed=True), 6)) is RankAnswer.PASSED


def test_a_rank_says_in_its_hello_what_binds_it() -> None:
    assert after(stop(1)).newest() is None
    assert after(checkpoint(1, 5, committed=True), stop(2, 9)).newest() == RankPosition(stop(2, 9), RankAnswer.ACCEPTED)


@given(st.lists(st.tuples(LINES, STEPS), max_size=12))
def test_nobody_is_held_back_before_the_proposed_step(received: list[tuple[StepAgreement | None, int]]) -> None:
    """Whatever comes in whatever order: a new gate is the proposed step, and above the steps that are finished."""
    held = HeldPositions()
    for line, step in received:
        before = held
        held = held.receive(line, step)
        for purpose in StepPurpose:
            gate = held.gate(purpose)
            if gate is not None and gate != before.gate(purpose):
                assert line is not None
                assert step < gate
                assert gate == line.step


@given(st.lists(LINES, max_size=8), LINES, STEPS)
def test_a_repeated_line_changes_nothing(
    lines: list[StepAgreement | None], line: StepAgreement | None, step: int
) -> None:
    once = after(*lines, step=step).receive(line, step)
    assert once.receive(line, step) == once


@given(st.lists(LINES, max_size=8), AGREEMENTS, STEPS, STEPS)
def test_an_older_epoch_changes_nothing(
    lines: list[StepAgreement | None], old: StepAgreement, step: int, then: int
) -> None:
    held = after(*lines, step=step).receive(stop(old.epoch + 1, 3), step)
    assert held.receive(old, then) == held


@given(st.lists(LINES, max_size=8), st.lists(LINES, max_size=8), STEPS, st.booleans())
def test_what_is_settled_stays_settled(
    before: list[StepAgreement | None],
    later: list[StepAgreement | None],
    step: int,
    reached: bool,  # noqa: FBT001
) -> None:
    """Until an agreement of a newer epoch replaces it."""
    held = after(*before, step=step)
    for position in filter(None, list(held.positions.values())):
        held = held.settle(position, reached=reached)
        for line in later:
            held = held.receive(line, step)
            known = held.positions.get(position.agreement.purpose)
            assert known is not None
            if known.agreement.epoch > position.agreement.epoch:
                break
            assert known.answer is (RankAnswer.REACHED if reached else RankAnswer.PASSED)


@given(st.lists(LINES, max_size=8), LINES, STEPS, st.sampled_from(StepPurpose), st.booleans())
def test_a_rank_holds_only_at_a_step_that_it_has_reached(
    lines: list[StepAgreement | None],
    later: StepAgreement | None,
    step: int,
    purpose: StepPurpose,
    reached: bool,  # noqa: FBT001
) -> None:
    """And goes on holding, whatever comes, until an agreement of a newer epoch."""
    held = after(*lines, step=step)
    assert held.hold(purpose) == held
    position = held.positions.get(purpose)
    if position is None:
        return
    settled = held.settle(position, reached=reached)
    holds = settled.hold(purpose)
    assert answer(holds, purpose) is (RankAnswer.HELD if reached else RankAnswer.PASSED)
    if later is None or later.epoch < holds.epoch or later.epoch == position.agreement.epoch:
        assert answer(holds.receive(later, step), purpose) is answer(holds, purpose)


@dataclass
class SteppingRank:
    """A rank that takes one step at a time, and waits where it must."""

    held: HeldPositions = field(default_factory=HeldPositions)
    step: int = 0
    heard: int = 0
    stopped_at: int | None = None

    def waits(self) -> bool:
        gate = self.held.gate(StepPurpose.STOP)
        return gate is not None and self.step >= gate


@dataclass
class SteppingJob:
    """Ranks, and a supervisor that commits only what all of them have accepted."""

    ranks: list[SteppingRank]
    lines: list[StepAgreement | None] = field(default_factory=lambda: [None])
    outcomes: dict[int, bool] = field(default_factory=dict)

    def decide(self, ahead: int) -> None:
        last = self.lines[-1]
        if last is None:
            self.lines.append(stop(len(self.lines)))
        elif last.step is None:
            self.lines.append(replace(last, step=max(rank.step for rank in self.ranks) + ahead))
        elif not last.committed and all(self._has_accepted(rank, last) for rank in self.ranks):
            self.lines.append(replace(last, committed=True))
        elif not last.committed:
            self.lines.append(stop(len(self.lines)))

    def withdraw(self) -> None:
        last = self.lines[-1]
        if last is not None and not last.committed:
            self.lines.append(None)

    def deliver(self, rank: SteppingRank, line: int) -> None:
        """Lines may be skipped and repeated; an older one may come late, but not the news that there is none."""
        line %= len(self.lines)
        if line < rank.heard and self.lines[line] is None:
            return
        rank.heard = max(rank.heard, line)
        rank.held = rank.held.receive(self.lines[line], rank.step)

    def deliver_to_all(self) -> None:
        for rank in self.ranks:
            self.deliver(rank, len(self.lines) - 1)

    def advance(self, rank: SteppingRank, *, gives_up: bool) -> None:
        if rank.stopped_at is not None:
            return
        if not rank.waits():
            rank.step += 1
        position = rank.held.positions.get(StepPurpose.STOP)
        if position is None or not rank.waits() or not (position.is_committed or gives_up):
            return
        reached = self.outcomes.setdefault(position.agreement.epoch, position.is_committed)
        rank.held = rank.held.settle(position, reached=reached)
        rank.stopped_at = rank.step if reached else None

    @staticmethod
    def _has_accepted(rank: SteppingRank, line: StepAgreement) -> bool:
        return rank.held.positions.get(StepPurpose.STOP) == RankPosition(line, RankAnswer.ACCEPTED)


ACTIONS = st.one_of(
    st.tuples(st.just("decide"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(0, 3), st.integers(0, 20)),
    st.tuples(st.just("latest"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("advance"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("all"), st.just(0), st.just(0)),
    st.tuples(st.just("withdraw"), st.just(0), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=60))
@examples(400)
def test_no_two_ranks_stop_at_different_steps(actions: list[tuple[str, int, int]]) -> None:
    """Under loss, repetition and reordering, and with ranks that give up waiting before they hear of the commit."""
    job = SteppingJob([SteppingRank() for _ in range(4)])
    for _ in ("poll", "proposal"):
        job.decide(ahead=2)
        job.deliver_to_all()
    for action, first, second in actions:
        rank = job.ranks[first]
        if action == "decide":
            job.decide(first)
        elif action == "withdraw":
            job.withdraw()
        elif action == "all":
            job.deliver_to_all()
        elif action == "advance":
            job.advance(rank, gives_up=second == 0)
        else:
            job.deliver(rank, second if action == "deliver" else len(job.lines) - 1)
    for _ in range(200):  # in the end everybody hears the last line
        job.deliver_to_all()
        for rank in job.ranks:
            job.advance(rank, gives_up=False)
    ends = {rank.stopped_at for rank in job.ranks}
    assert len(ends) == 1
    last = job.lines[-1]
    if last is not None and last.committed:
        assert ends <= {None, last.step}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"epoch": 1, "purpose": "stop", "step": None, "committed": True},
        {"epoch": "1", "purpose": "stop", "step": 1, "committed": True},
        {"epoch": 1, "purpose": "leave", "step": 1, "committed": True},
        {"epoch": 1, "purpose": "stop", "step": 1.5, "committed": True},
        {"epoch": 1, "purpose": "stop", "step": 1, "committed": 1},
        {"epoch": True, "purpose": "stop", "step": 1, "committed": False},
        [],
        "stop",
    ],
)
def test_a_malformed_agreement_is_refused(value: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_agreement(value)


def test_an_agreement_is_read() -> None:
    assert parse_agreement(None) is None
    assert parse_agreement({"epoch": 3, "purpose": "stop", "step": 7, "committed": True, "later": 1}) == stop(
        3, 7, committed=True
    )
