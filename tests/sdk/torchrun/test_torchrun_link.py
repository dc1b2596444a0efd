"""The connection of a member, with the fake coordinator on the other side."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kubeai.elastic.threads import StderrLog
from kubeai.torchrun import member
from kubeai.torchrun.link import MemberLink
from kubeai.torchrun.member import Enter, Exit, Membership, MemberState
from kubeai.torchrun.testing import FakeCoordinator

from tests.testkit.waiting import wait_until


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[FakeCoordinator]:
    with FakeCoordinator(heartbeat=0.1) as fake:
        fake.write_identity(tmp_path)
        yield fake


@pytest.fixture
def membership() -> Membership:
    return Membership(MemberState("m1", 2, "127.0.0.1"))


@pytest.fixture
def lines() -> list[int]:
    return []


def has_ended(link: MemberLink) -> bool:
    return not any(thread.is_alive() for thread in link.threads)


@pytest.fixture
def link(
    tmp_path: Path, membership: Membership, lines: list[int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[MemberLink]:
    monkeypatch.setenv("KUBEAI_HOST", "n1")
    link = MemberLink(tmp_path, membership, lambda: lines.append(1), StderrLog())
    yield link
    link.close()
    wait_until(lambda: has_ended(link), "the threads to end")


def test_a_member_waits_and_is_told_its_round(
    coordinator: FakeCoordinator, membership: Membership, link: MemberLink, lines: list[int]
) -> None:
    membership.wait()
    formed = coordinator.form("n1")
    assert membership.next_step(60) == Enter(formed)
    assert [one.member for one in formed.members] == ["m1"]
    assert lines
    assert not has_ended(link)


def test_it_reports_each_change_and_its_last_state(
    coordinator: FakeCoordinator, membership: Membership, link: MemberLink
) -> None:
    membership.wait()
    coordinator.wait_for(lambda: coordinator.reports and coordinator.members["n1"]["waits"])
    membership.change(lambda state: replace(state, waits=False, ended=True))
    link.close()
    last = coordinator.reports[-1].body
    assert (last["member"], last["state"]["ended"]) == ("m1", True)
    revisions = [report.body["revision"] for report in coordinator.reports]
    assert revisions == sorted(set(revisions))


def test_it_reports_without_a_change_so_that_it_is_not_taken_for_frozen(
    coordinator: FakeCoordinator, link: MemberLink
) -> None:
    coordinator.wait_for(lambda: len(coordinator.reports) >= 3)
    assert not has_ended(link)


def test_it_says_all_of_it_again_to_a_supervisor_that_was_away(
    coordinator: FakeCoordinator, membership: Membership, link: MemberLink
) -> None:
    membership.wait()
    formed = coordinator.form("n1")
    membership.change(lambda state: member.enter(state, formed))
    coordinator.wait_for(lambda: coordinator.members["n1"]["round"] == 1)
    coordinator.stop()
    wait_until(lambda: membership.absent_seconds > 0, "the absence to be noticed")
    coordinator.start()
    coordinator.wait_for(lambda: len(coordinator.hellos) == 2)
    known = {"number": 1, "hosts": ["n1"], "in_process": False}
    assert coordinator.hellos[1].body["state"]["known"] == known
    wait_until(lambda: membership.absent_seconds == 0, "the return to be noticed")
    assert not has_ended(link)


def test_garbage_on_the_stream_is_survived(
    coordinator: FakeCoordinator, membership: Membership, link: MemberLink
) -> None:
    membership.wait()
    coordinator.wait_for(lambda: coordinator.members)
    coordinator.send_raw(b'{"type": "rendezvous", "wanted": -3}\n{"type": "news"}\n')
    coordinator.send_raw(b"no json\n")
    coordinator.wait_for(lambda: len(coordinator.hellos) == 2)
    assert membership.next_step(0) is None
    assert not has_ended(link)


def test_a_waiting_member_of_a_run_that_is_over_exits(
    coordinator: FakeCoordinator, membership: Membership, link: MemberLink
) -> None:
    membership.wait()
    coordinator.wait_for(lambda: coordinator.members)
    coordinator.refuse(409, "run_is_over")
    coordinator.drop()
    wait_until(lambda: membership.next_step(0.01) == Exit(1), "the member to leave")
    wait_until(lambda: has_ended(link), "the threads to end")
