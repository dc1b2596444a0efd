"""What a member does next, from its state and the supervisor's last line."""

from dataclasses import replace

import pytest
from kubeai.torchrun import member
from kubeai.torchrun.member import (
    Enter,
    Exit,
    MemberState,
    RendezvousLine,
    RendezvousRound,
    RoundMember,
    RoundStoreAddress,
    StartToJoin,
)

STORE = RoundStoreAddress("10.0.0.1", 4000)
FRESH = MemberState("b", 2, "10.0.0.2")


def formed(
    number: int, *members: str, store: RoundStoreAddress | None = STORE, in_process: bool = False
) -> RendezvousRound:
    return RendezvousRound(
        number, tuple(RoundMember(one, f"host-{one}", "address", 2) for one in members), in_process, store
    )


def line(
    wanted: int, newest: RendezvousRound | None = None, *, starts: bool = False, release: int | None = None
) -> RendezvousLine:
    return RendezvousLine(1, wanted, newest, starts=starts, release=release)


def test_it_enters_the_newest_round_once_its_store_is_open() -> None:
    waiting = member.wait(FRESH, None)
    assert member.next_step(waiting, None) is None
    assert member.next_step(waiting, line(1, formed(1, "a", "b", store=None))) is None
    assert member.next_step(waiting, line(1, formed(1, "a", "b"))) == Enter(formed(1, "a", "b"))


def test_member_0_opens_the_store() -> None:
    first = formed(1, "b", "a", store=None)
    assert member.next_step(member.wait(FRESH, None), line(1, first)) == Enter(first)


def test_it_parks_while_the_newest_round_is_without_it() -> None:
    one = formed(1, "a", "b")
    trains = member.enter(FRESH, one)
    assert not member.must_rejoin(trains, line(1, one))
    assert member.must_rejoin(trains, line(2, one))
    parked = member.wait(trains, line(2, one))
    assert parked.waits
    assert not parked.failed
    assert member.next_step(parked, line(2, one)) is None
    assert member.next_step(parked, line(3, formed(3, "a", "b"))) == Enter(formed(3, "a", "b"))


def test_its_workers_have_failed_if_it_rejoins_although_nobody_wants_it_to() -> None:
    one = formed(1, "a", "b")
    failed = member.wait(member.enter(FRESH, one), line(1, one))
    assert failed.failed
    assert member.next_step(failed, line(1, one)) is None
    assert not member.enter(failed, formed(2, "b")).failed


def test_it_waits_for_a_newer_round_if_it_cannot_reach_the_store() -> None:
    waiting = replace(member.wait(FRESH, None), unreachable=1)
    assert member.next_step(waiting, line(1, formed(1, "a", "b"))) is None
    assert member.next_step(waiting, line(2, formed(2, "b"))) == Enter(formed(2, "b"))


def test_a_joiner_starts_and_enters_in_process() -> None:
    one, two = formed(1, "a"), formed(2, "a", "b", in_process=True)
    starting = line(1, starts=True)
    assert member.next_step(member.wait(FRESH, starting), starting) == StartToJoin()
    joiner = member.start_to_join(member.wait(FRESH, starting))
    assert not joiner.waits
    assert not member.must_rejoin(joiner, starting)
    joined = member.adopt(replace(joiner, started=True), line(2, two))
    assert (joined.round, joined.joins, joined.known) == (2, False, two)
    assert not member.must_rejoin(joined, line(2, two))
    assert one.index_of("b") is None


@pytest.mark.parametrize("now", [line(1), line(2, formed(2, "a", "b"))])
def test_a_joiner_stops_its_workers_if_it_is_taken_back_or_is_to_restart(now: RendezvousLine) -> None:
    joiner = member.start_to_join(member.wait(FRESH, None))
    assert member.must_rejoin(joiner, now)
    assert not member.wait(joiner, now).failed


def test_a_joiner_whose_workers_fail_says_so() -> None:
    joiner = member.start_to_join(member.wait(FRESH, None))
    assert member.wait(joiner, line(1, starts=True)).failed


def test_running_workers_regroup_in_process_and_the_leaver_stops_its_own() -> None:
    one, two = formed(1, "a", "b", "c"), formed(2, "a", "b", store=None, in_process=True)
    trains = member.enter(FRESH, one)
    regrouped = member.adopt(trains, line(2, two))
    assert (regrouped.round, regrouped.known) == (2, two)
    assert not member.must_rejoin(regrouped, line(2, two))
    opened = member.adopt(regrouped, line(2, replace(two, store=STORE)))
    assert opened.known == replace(two, store=STORE)
    assert member.must_rejoin(member.enter(replace(FRESH, member="c"), one), line(2, one))


def test_new_workers_do_not_enter_a_round_in_process() -> None:
    """The other members would wait for the old ones."""
    one, two = formed(1, "a", "b"), formed(2, "a", "b", in_process=True)
    failed = member.wait(member.enter(FRESH, one), line(1, one))
    assert member.next_step(failed, line(2, two)) is None
    assert member.adopt(failed, line(2, two)) == failed


def test_the_fallback_to_a_restart_stops_workers_that_regrouped() -> None:
    two = formed(2, "a", "b", in_process=True)
    trains = member.enter(FRESH, two)
    assert member.must_rejoin(trains, line(3, formed(3, "a", "b")))


def test_a_member_that_waits_is_released() -> None:
    assert member.next_step(member.wait(FRESH, None), line(4, release=0)) == Exit(0)


def test_older_lines_change_nothing() -> None:
    """The members may have formed a newer round without a supervisor."""
    trains = member.enter(FRESH, formed(5, "b"))
    older = line(4, formed(4, "a", "b", in_process=True))
    assert not member.must_rejoin(trains, older)
    assert member.adopt(trains, older) == trains
    assert member.next_step(member.wait(trains, older), older) is None
