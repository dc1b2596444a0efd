"""Rounds that members form among themselves while the supervisor is away."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kubeai.elastic import wire
from kubeai.elastic.threads import StderrLog
from kubeai.torchrun import member
from kubeai.torchrun.member import (
    Enter,
    Membership,
    MemberState,
    RendezvousLine,
    RendezvousRound,
    RoundMember,
    RoundStoreAddress,
)
from kubeai.torchrun.peers import PeerAnswer, PeerLink, next_round

from tests.testkit.waiting import wait_until

STORE = RoundStoreAddress("127.0.0.1", 4000)
NAMES = "abcd"


def formed(number: int, names: str = NAMES, store: RoundStoreAddress | None = STORE) -> RendezvousRound:
    return RendezvousRound(
        number, tuple(RoundMember(name, f"host-{name}", f"address-{name}", 2) for name in names), store=store
    )


LAST = formed(7)
WAITS = PeerAnswer(reached=True, waits=True, wanted=7, known=LAST)
TRAINS = replace(WAITS, waits=False)
GONE = PeerAnswer(gone=True)
SILENT = PeerAnswer()


def names(found: RendezvousRound | None) -> str:
    return "" if found is None else f"{found.number}:" + "".join(one.member for one in found.members)


@pytest.mark.parametrize(
    ("answers", "own", "expected"),
    [
        ([GONE, WAITS, WAITS, WAITS], 1, "8:bcd"),
        ([GONE, WAITS, WAITS, WAITS], 2, ""),
        ([WAITS, GONE, GONE, GONE], 0, "8:a"),
        ([GONE, WAITS, TRAINS, WAITS], 1, ""),
        ([WAITS, WAITS, SILENT, WAITS], 0, "8:abd"),
        ([WAITS, WAITS, SILENT, SILENT], 0, "8:ab"),
        ([SILENT, SILENT, WAITS, WAITS], 2, ""),
        ([WAITS, SILENT, SILENT, SILENT], 0, ""),
        ([GONE, WAITS, SILENT, SILENT], 1, ""),
        ([WAITS, WAITS, WAITS, replace(WAITS, parked=True)], 0, "8:abc"),
        ([WAITS, WAITS, WAITS, replace(WAITS, supervised=True)], 0, ""),
        ([WAITS, WAITS, WAITS, replace(WAITS, wanted=9)], 0, "10:abcd"),
    ],
)
def test_the_lowest_reachable_member_forms_a_round_of_a_majority(
    answers: list[PeerAnswer], own: int, expected: str
) -> None:
    assert names(next_round(LAST, own, answers, least=1)) == expected


def test_the_others_follow_it_once_its_store_is_open() -> None:
    eight = formed(8, "bcd")
    assert next_round(LAST, 2, [GONE, replace(TRAINS, known=eight), WAITS, WAITS], least=1) == eight
    closed = replace(TRAINS, known=formed(8, "bcd", store=None))
    assert next_round(LAST, 2, [GONE, closed, WAITS, WAITS], least=1) is None
    other = replace(TRAINS, known=formed(8, "bd"))
    assert next_round(LAST, 2, [GONE, other, WAITS, WAITS], least=1) is None


def test_members_that_do_not_end_their_workers_are_left_behind_in_the_end() -> None:
    answers = [WAITS, WAITS, WAITS, TRAINS]
    assert next_round(LAST, 0, answers, least=1) is None
    assert names(next_round(LAST, 0, answers, least=1, patient=False)) == "8:abc"


def test_a_round_is_never_smaller_than_the_least() -> None:
    assert next_round(LAST, 0, [WAITS, GONE, GONE, GONE], least=2) is None


STRANDED = replace(TRAINS, stranded=True)


@pytest.mark.parametrize(
    ("answers", "own", "expected"),
    [
        ([GONE, STRANDED, STRANDED, STRANDED], 1, "8:bcd"),
        ([GONE, STRANDED, STRANDED, STRANDED], 2, ""),
        ([GONE, STRANDED, TRAINS, STRANDED], 1, ""),
        ([WAITS, STRANDED, STRANDED, STRANDED], 1, "8:bcd"),
        ([WAITS, STRANDED, STRANDED, STRANDED], 0, ""),
        ([WAITS, WAITS, WAITS, STRANDED], 3, ""),
        ([SILENT, SILENT, STRANDED, STRANDED], 2, ""),
        ([GONE, STRANDED, STRANDED, replace(TRAINS, supervised=True)], 1, ""),
    ],
)
def test_members_whose_workers_have_lost_a_rank_go_on_in_process(
    answers: list[PeerAnswer], own: int, expected: str
) -> None:
    """Those that have to start new workers are not part of their round."""
    found = next_round(LAST, own, answers, least=1)
    assert names(found) == expected
    assert found is None or found.in_process


class PeeringAgent:
    """A member without torch: it enters what it is to enter, and goes on until it is stopped."""

    def __init__(self, name: str) -> None:
        self.membership = Membership(MemberState(name, 2, ""))
        self.peers = PeerLink("127.0.0.1", self.membership, least=1, away_seconds=0.01, stderr=StderrLog())
        self.membership.change(lambda state: replace(state, address=self.peers.address))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def member(self) -> RoundMember:
        return RoundMember(self.membership.state.member, "host", self.peers.address, 2)

    @property
    def known(self) -> str:
        return names(self.membership.state.known)

    def enter(self, one: RendezvousRound) -> None:
        self.membership.change(lambda state: member.enter(state, one))

    def strand(self) -> None:
        """Its workers have lost a rank, and wait in process."""
        self.membership.change(lambda state: replace(state, stranded=True))
        self._thread.start()

    def rejoin(self) -> None:
        """Its agent calls `next_rendezvous`."""
        self.membership.wait()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self.peers.close()

    def _run(self) -> None:
        while not self._stopped.is_set() and self.membership.state.stranded:
            self.peers.look()
            self.membership.change(self._opened)
        while not self._stopped.is_set() and self.membership.state.waits:
            self.peers.look()
            step = self.membership.next_step(0.02)
            if isinstance(step, Enter):
                self.enter(replace(step.round, store=step.round.store or STORE))

    def _opened(self, state: MemberState) -> MemberState:
        """Open the store of a round in process, as its first member does."""
        known = state.known
        is_first = known is not None and known.in_process and known.index_of(state.member) == 0
        return replace(state, known=replace(known, store=STORE)) if known is not None and is_first else state


@pytest.fixture
def agents() -> Iterator[list[PeeringAgent]]:
    made = [PeeringAgent(name) for name in "abc"]
    one = RendezvousRound(1, tuple(agent.member for agent in made), store=STORE)
    for agent in made:
        agent.enter(one)
    yield made
    for agent in made:
        agent.stop()


def test_the_survivors_of_a_loss_go_on_together(agents: list[PeeringAgent]) -> None:
    """The first is gone. The third has not noticed anything; the second asks it to stop its workers."""
    gone, second, third = agents
    gone.peers.close()
    second.rejoin()
    wait_until(lambda: third.membership.must_rejoin, "the third member to be asked")
    third.rejoin()
    wait_until(lambda: (second.known, third.known) == ("2:bc", "2:bc"), "the next round")
    assert not third.membership.state.failed


def test_the_survivors_of_a_loss_in_process_stop_no_workers(agents: list[PeeringAgent]) -> None:
    """One whose workers have not noticed the loss yet is asked to stop nothing: it is waited for."""
    gone, second, third = agents
    gone.peers.close()
    second.strand()
    wait_until(lambda: second.peers.looks >= 3, "some attempts")
    assert (second.known, third.membership.must_rejoin) == ("1:abc", False)
    third.strand()
    wait_until(lambda: (second.known, third.known) == ("2:bc", "2:bc"), "the next round")
    for agent in (second, third):
        assert not agent.membership.must_rejoin
        assert agent.membership.state.known is not None
        assert agent.membership.state.known.in_process


def test_nothing_is_formed_while_one_of_them_has_the_supervisor(agents: list[PeeringAgent]) -> None:
    gone, second, third = agents
    gone.peers.close()
    third.membership.set_absent(absent=False)
    second.rejoin()
    wait_until(lambda: second.peers.looks >= 3, "some attempts")
    assert second.known == "1:abc"
    assert not third.membership.must_rejoin
    third.membership.set_absent(absent=True)
    wait_until(lambda: third.membership.must_rejoin, "the third member to be asked")


def test_a_member_that_was_taken_off_keeps_parked(agents: list[PeeringAgent]) -> None:
    one = agents[0].membership.state.known
    agents[0].membership.receive(RendezvousLine(1, 2, one))
    agents[0].rejoin()
    agents[1].rejoin()
    agents[2].rejoin()
    wait_until(lambda: (agents[1].known, agents[2].known) == ("3:bc", "3:bc"), "the next round")
    assert agents[0].known == "1:abc"


@pytest.mark.parametrize("body", [{}, {"round": "x"}, {"round": None}])
def test_a_stranger_and_garbage_are_refused(agents: list[PeeringAgent], body: dict[str, Any]) -> None:
    agent = agents[0]
    with pytest.raises(wire.CallRefused) as stranger:
        wire.post(wire.CallAddress(f"http://{agent.peers.address}", "b"), "/v1/peers", {"round": 1})
    assert stranger.value.code == "bad_token"
    with pytest.raises(wire.CallRefused) as garbage:
        wire.post(wire.CallAddress(f"http://{agent.peers.address}", "a"), "/v1/peers", body)
    assert garbage.value.code == "malformed"
    assert not agent.membership.must_rejoin
    assert json.dumps(agent.membership.state.fields())
