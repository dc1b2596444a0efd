"""Ranks and supervisor agree on a step, whatever happens to the network, the ranks and the supervisor.

Both sides are real but for their sockets and threads. What is checked is what people lose otherwise: a rank that trains
past a step at which another one saves hangs, or loses steps.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from kubeai.elastic import agreement

from supervisor.domain.job import Decision, Phase
from tests.agreement.agreement_network import Weather
from tests.agreement.agreement_rank import COMMIT_SECONDS
from tests.agreement.agreement_world import AgreedTraining, AgreementEvent, AgreementWorld, Happening
from tests.testkit.properties import examples

_NOTICE_AT = 6.0
_LEADS = (12.0, 20.0, 40.0)
_AFTERWARDS_SECONDS = 15.0
"""For the end of a run after the deadline."""

_MOST_AWAY_SECONDS = 3.0
"""A supervisor that is away until shortly before the deadline has no time to agree."""

_HARMLESS = (Happening.STUCK, Happening.FROZEN, Happening.BROKEN, Happening.WITHDRAWAL, Happening.HINT)
_ANYTHING = tuple(what for what in Happening if what is not Happening.NOTICE)
_IN_THE_MIDDLE = (Happening.CUT, Happening.CUT, Happening.KILLED, Happening.REPLACED, Happening.WITHDRAWAL)


@st.composite
def _trainings(draw: st.DrawFn, *, arbiter: bool) -> AgreedTraining:
    return AgreedTraining(
        ranks=draw(st.integers(2, 4)),
        step_seconds=draw(st.sampled_from([0.2, 0.05, 0.7, 3.0])),
        save_seconds=draw(st.sampled_from([0.3, 2.0])),
        lockstep=draw(st.sampled_from([True, True, True, False])),
        collective=draw(st.booleans()),
        arbiter=arbiter,
    )


@st.composite
def _events(draw: st.DrawFn, kinds: Sequence[Happening], longest: float) -> list[AgreementEvent]:
    """A notice, perhaps a second one, and whatever else happens in the seconds around it."""
    lead = draw(st.sampled_from(_LEADS))
    events = [AgreementEvent(at=_NOTICE_AT, what=Happening.NOTICE, rank=draw(st.integers(0, 3)), seconds=lead)]
    for _ in range(draw(st.integers(0, 5))):
        # Most often in the tenths of a second in which ranks and supervisor agree.
        at = _NOTICE_AT + draw(st.sampled_from([0.0, 0.0, 0.0, -2.0, 1.0, 3.0])) + draw(st.integers(0, 25)) / 100
        what = draw(st.sampled_from(kinds))
        most = min(longest, _MOST_AWAY_SECONDS) if what is Happening.KILLED else longest
        seconds = min(most, draw(st.sampled_from([0.05, 0.5, 1.0, 3.0, 8.0, 30.0])))
        events.append(AgreementEvent(at=at, what=what, rank=draw(st.integers(0, 3)), seconds=seconds))
    if draw(st.booleans()):
        again = draw(st.sampled_from([0.5, 3.0]))
        events.append(AgreementEvent(at=_NOTICE_AT + again, what=Happening.NOTICE, rank=0, seconds=lead))
    return events


def _weather(slowest: Sequence[float], faulty: Sequence[float]) -> st.SearchStrategy[Weather]:
    return st.builds(
        Weather, slowest=st.sampled_from(slowest), faulty=st.sampled_from(faulty), seed=st.integers(0, 2**16)
    )


def _run(training: AgreedTraining, weather: Weather, events: Sequence[AgreementEvent]) -> AgreementWorld:
    """The world after its run, or long after the last deadline."""
    world = AgreementWorld(training, weather)
    deadline = max(event.at + event.seconds for event in events if event.what is Happening.NOTICE)
    world.run(sorted(events, key=lambda event: event.at), deadline + _AFTERWARDS_SECONDS)
    return world


def _assert_never_split(world: AgreementWorld) -> None:
    """No rank goes past a step at which another one stops or saves for the same agreement."""
    for rank in world.ranks:
        for purpose, epoch, step in rank.acted:
            for other in world.ranks:
                same = [at for what, number, at in other.acted if (what, number) == (purpose, epoch)]
                assert same in ([], [step]), f"ranks {rank.number} and {other.number} act at {step} and {same}"
                has_gone_past = other.passed[purpose] >= step and not same
                assert not has_gone_past, f"rank {other.number} is past {step}, where rank {rank.number} acts"


def _assert_nobody_waited_long(world: AgreementWorld) -> None:
    assert all(seconds <= COMMIT_SECONDS + 0.01 or rank.frozen_until for rank in world.ranks for seconds in rank.waits)


def _assert_epochs(decisions: Sequence[Decision]) -> None:
    """An epoch has one step, is proposed before it is committed, and is never used again."""
    agreements = [each.agreement for each in decisions if each.agreement is not None]
    for before, after in pairwise(agreements):
        assert after.epoch >= before.epoch
        if after.epoch == before.epoch:
            assert before.step in (None, after.step)
            assert after.committed >= before.committed
        assert not after.committed or (before.epoch, before.step) == (after.epoch, after.step)


def _assert_ends_well(world: AgreementWorld, events: Sequence[AgreementEvent]) -> None:
    """The job has stopped, at an agreed step or with a reason why not, or goes on because nothing stops it."""
    happened = {event.what for event in events}
    if Happening.DEATH in happened:
        return  # The launcher ends such a run.
    stops = [each for each in world.decisions if each.phase is Phase.STOPPING]
    if not world.is_over:
        assert Happening.WITHDRAWAL in happened
        assert not stops
        assert not any(rank.is_stopped for rank in world.ranks)
        assert world.decision.phase is Phase.RUNNING
        return
    is_agreed = any(each.agreed_stop is not None for each in stops)
    # A new supervisor to which no rank returns in time cannot know that the ranks agree.
    is_new = bool(happened & {Happening.KILLED, Happening.REPLACED})
    is_alone = is_new and bool(happened & {Happening.FROZEN, Happening.CUT})
    assert is_agreed or is_alone or "agreed step" in world.decision.reason, world.decision.reason


@examples(300)
@given(_trainings(arbiter=True), _weather([0.02, 0.3, 2.0], [0.0, 0.2, 0.5]), _events(_ANYTHING, 30.0))
def test_ranks_with_a_store_of_their_own_never_part(
    training: AgreedTraining, weather: Weather, events: list[AgreementEvent]
) -> None:
    """Whatever is lost, late, repeated or dead: they stop at one step or none of them does."""
    world = _run(training, weather, events)
    _assert_never_split(world)
    _assert_nobody_waited_long(world)
    _assert_epochs(world.decisions)
    _assert_ends_well(world, events)


@st.composite
def _interruptions(draw: st.DrawFn) -> list[AgreementEvent]:
    """A notice, and one to three interruptions of the exchange that follows."""
    events = [AgreementEvent(at=_NOTICE_AT, what=Happening.NOTICE, seconds=20.0)]
    for _ in range(draw(st.integers(1, 3))):
        what, at = draw(st.sampled_from(_IN_THE_MIDDLE)), _NOTICE_AT + draw(st.integers(1, 60)) / 100
        seconds = draw(st.sampled_from([0.5, 6.0])) if what is Happening.CUT else 0.2
        events.append(AgreementEvent(at=at, what=what, rank=draw(st.integers(0, 3)), seconds=seconds))
    return events


@examples(400)
@given(
    st.builds(AgreedTraining, ranks=st.just(3), step_seconds=st.sampled_from([0.3, 1.0]), lockstep=st.booleans()),
    _weather([0.1, 0.3], [0.0]),
    _interruptions(),
)
def test_an_exchange_that_is_interrupted_never_parts_ranks_with_a_store(
    training: AgreedTraining, weather: Weather, events: list[AgreementEvent]
) -> None:
    """A rank misses the commit, or the supervisor is gone before it has stored or sent it."""
    world = _run(training, weather, events)
    _assert_never_split(world)
    _assert_nobody_waited_long(world)
    _assert_epochs(world.decisions)
    _assert_ends_well(world, events)


@examples(200)
@given(_trainings(arbiter=False), _weather([0.02, 0.2], [0.0]), _events(_HARMLESS, 1.0))
def test_ranks_without_a_store_never_part_while_nobody_is_cut_off(
    training: AgreedTraining, weather: Weather, events: list[AgreementEvent]
) -> None:
    """A line has the rest of the way to the step and two seconds to arrive."""
    world = _run(training, weather, events)
    _assert_never_split(world)
    _assert_nobody_waited_long(world)
    _assert_epochs(world.decisions)
    _assert_ends_well(world, events)


@examples(100)
@given(_trainings(arbiter=False), _weather([0.002, 0.01], [0.0]), st.sampled_from(_LEADS))
def test_an_undisturbed_job_stops_at_an_agreed_step_without_waiting(
    training: AgreedTraining, weather: Weather, lead: float
) -> None:
    events = [AgreementEvent(at=_NOTICE_AT, what=Happening.NOTICE, seconds=lead)]
    world = _run(replace(training, lockstep=True), weather, events)
    assert [len(rank.acted) for rank in world.ranks] == [1] * training.ranks
    assert not any(rank.waits for rank in world.ranks)
    assert world.timeline.now < _NOTICE_AT + lead
    _assert_never_split(world)


def test_the_simulation_waits_as_long_as_the_sdk() -> None:
    assert agreement._COMMIT_SECONDS == COMMIT_SECONDS
