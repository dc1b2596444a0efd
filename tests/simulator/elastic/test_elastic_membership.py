"""The launcher's decisions, one situation at a time."""

from dataclasses import replace

import pytest

from simulator.elastic.membership import (
    Action,
    CallOff,
    Dismiss,
    ElasticLimits,
    ElasticMember,
    ElasticSituation,
    FormRing,
    MemberPhase,
    Spawn,
    WorkerId,
    decide,
    formed,
    state_is_lost,
)

LIMITS = ElasticLimits(min_workers=2, max_workers=4, start_workers=3)
R, S, I, L = MemberPhase.READY, MemberPhase.STARTING, MemberPhase.IN_RING, MemberPhase.LEAVING  # noqa: E741 - the letters of the table below


def member(number: int, host: str, phase: MemberPhase, *, has_state: bool | None = None) -> ElasticMember:
    """A member; one in a ring holds the state unless said otherwise."""
    return ElasticMember(WorkerId(number), host, phase, has_state=phase is I if has_state is None else has_state)


def situation(
    listed: str, *members: ElasticMember, epoch: int = 1, blacklist: str = "", called_off: bool = False
) -> ElasticSituation:
    return ElasticSituation(members, frozenset(listed), frozenset(blacklist), epoch, called_off)


A, B, C = (member(number, host, I) for number, host in enumerate("abc", start=1))
READY_A, READY_B, READY_C = (member(number, host, R, has_state=True) for number, host in enumerate("abc", start=1))
JOINER = member(9, "j", R)
FORM_AB = FormRing((WorkerId(1), WorkerId(2)))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(situation("ab", epoch=0), (), id="waits for enough hosts at the start"),
        pytest.param(situation("cab", epoch=0), (Spawn("a"), Spawn("b"), Spawn("c")), id="starts one on each"),
        pytest.param(situation("abcdef", epoch=0), tuple(map(Spawn, "abcd")), id="starts no more than the maximum"),
        pytest.param(
            situation("ab", member(1, "a", R), member(2, "b", S), epoch=0), (), id="the first ring waits for everybody"
        ),
        pytest.param(
            situation("ab", member(1, "a", R), member(2, "b", R), epoch=0),
            (FORM_AB,),
            id="the first ring",
        ),
        pytest.param(situation("abc", A, B, C), (), id="nothing to do"),
        pytest.param(situation("bc", A, B, C), (CallOff(),), id="a host has left the list"),
        pytest.param(situation("bc", A, B, C, called_off=True), (), id="they know already"),
        pytest.param(situation("abcj", A, B, C), (Spawn("j"),), id="a host has come"),
        pytest.param(situation("abcj", A, B, C, blacklist="j"), (), id="a host that failed stays out"),
        pytest.param(situation("abcj", A, B, C, member(9, "j", S)), (), id="a joiner starts while training goes on"),
        pytest.param(situation("abcj", A, B, C, JOINER), (CallOff(),), id="a joiner is ready"),
        pytest.param(situation("abjk", A, B, JOINER, member(10, "k", S)), (), id="joiners join together"),
        pytest.param(situation("bj", A, B, member(9, "j", S)), (CallOff(),), id="a removal does not wait for a joiner"),
        pytest.param(situation("abc", A, B, C, JOINER), (Dismiss(WorkerId(9)),), id="a joiner whose host has left"),
        pytest.param(situation("abc", READY_A, B, C, called_off=True), (), id="not all are at the boundary yet"),
        pytest.param(
            situation("bc", READY_A, READY_B, READY_C),
            (Dismiss(WorkerId(1)), FormRing((WorkerId(2), WorkerId(3)))),
            id="the next ring leaves out who was removed",
        ),
        pytest.param(
            situation("abj", replace(READY_A, has_state=False), READY_B, JOINER),
            (FormRing((WorkerId(2), WorkerId(1), WorkerId(9))),),
            id="rank 0 holds the state",
        ),
        pytest.param(situation("a", READY_A, READY_B), (), id="below the minimum they wait"),
        pytest.param(situation("abj", READY_A, READY_B, member(9, "j", S)), (FORM_AB,), id="nobody waits for joiners"),
        pytest.param(situation("abcx", A, B, C, member(4, "x", L)), (), id="one worker a host at a time"),
    ],
)
def test_decisions(now: ElasticSituation, expected: tuple[Action, ...]) -> None:
    assert decide(now, LIMITS) == expected


def test_forming_a_ring_seats_its_members() -> None:
    """Rank 0 of the first ring holds the state; the others only once they have received it."""
    first = formed(situation("ab", member(1, "a", R), member(2, "b", R), JOINER, epoch=0), (WorkerId(1), WorkerId(2)))
    assert [(m.phase, m.has_state) for m in first.members] == [(I, True), (I, False), (R, False)]
    assert (first.epoch, first.called_off) == (1, False)


def test_the_state_is_lost_with_its_last_holder() -> None:
    """A worker that was never sent the state, or that is leaving, cannot go on with the job."""
    assert not state_is_lost(situation("ab", READY_A, JOINER))
    assert state_is_lost(situation("ab", JOINER))
    assert state_is_lost(situation("ab", replace(READY_A, phase=L), JOINER))
    assert state_is_lost(situation("ab", epoch=0))
    assert not state_is_lost(situation("ab", member(1, "a", S), epoch=0))
