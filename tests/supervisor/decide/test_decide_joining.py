"""When further hosts join a torchrun job: at once where that costs nothing, and otherwise when it pays."""

from dataclasses import replace

import pytest

from supervisor.decide.policy import Policy
from supervisor.decide.ranks import ChangeCosts
from tests.supervisor.decide.decide_builders import T0, notice, noticed
from tests.supervisor.decide.test_decide_rendezvous import HOSTS, RendezvousWorld

MEASURED = ChangeCosts(checkpoint_seconds=2.0, start_seconds=8.0)


def _shrunk(mode: str = "restart", costs: ChangeCosts = MEASURED, policy: Policy | None = None) -> RendezvousWorld:
    """A job that trains on four of its six hosts, because the last two have a notice."""
    world = RendezvousWorld(mode)
    world.costs = costs
    world.policy = policy or world.policy
    world.settle()
    for host in HOSTS[4:]:
        world.notice(host)
    world.settle()
    assert {*world.held.hosts} == {*HOSTS[:4]}
    return world


def _returned(world: RendezvousWorld, seconds: float = 400.0) -> float:
    """The other two have no notice any more, and each has another agent; returns the instant."""
    at = world.now
    for host in HOSTS[4:]:
        world.withdraw(host)
        world.replace(host)
    world.settle(seconds)
    return at


@pytest.mark.parametrize(
    ("costs", "seconds"),
    [(MEASURED, 20.0), (ChangeCosts(), 70.0), (replace(MEASURED, checkpoint_seconds=None), 26.0)],
    ids=["measured", "assumed", "no checkpoint yet"],
)
def test_hosts_join_when_they_have_waited_as_long_as_a_restart_costs(costs: ChangeCosts, seconds: float) -> None:
    """Together two hosts wait for half as long as the restart stops the four others, together."""
    world = _shrunk(costs=costs)
    at = _returned(world)
    assert world.held.hosts == tuple(HOSTS)
    assert world.held.since - T0 - at == pytest.approx(seconds, abs=2.0)


def test_hosts_that_wait_join_with_the_change_for_one_that_leaves() -> None:
    """The others stop anyway, so the hosts do not wait longer."""
    world = _shrunk()
    _returned(world, 1.0)
    assert world.held.hosts == tuple(HOSTS[:4])
    before = len(world.rounds)
    world.lose(HOSTS[0])
    world.lose(HOSTS[1])
    world.settle(1.0)
    assert set(world.held.hosts) == {*HOSTS[2:]}
    assert len(world.rounds) == before + 1


def _leaving(world: RendezvousWorld, left: float) -> float:
    """Two other hosts are to go after so many seconds; returns when the run is to go on without them."""
    world.notices |= noticed(*(notice(int(host[1:]), left=left, seen=T0 + world.now) for host in HOSTS[:2]))
    world.settle(0.1)
    assert world.job.decision.window_until is not None
    return world.job.decision.window_until - T0


@pytest.mark.parametrize(("costs", "before"), [(ChangeCosts(), 3.0), (ChangeCosts(change_seconds=10.0), 18.0)])
def test_hosts_that_are_ready_join_in_process_with_the_others_that_leave_soon(
    costs: ChangeCosts, before: float
) -> None:
    """They wait for less time, together, than a change of their own would stop the others. So the run stops once."""
    world = _shrunk("in process", costs)
    rounds, leave = len(world.rounds), _leaving(world, 60.0)
    world.now = leave - before
    _returned(world, 2.0)
    assert {*world.held.hosts} == {*HOSTS[:4]}
    world.now = leave
    world.settle(2.0)
    assert {*world.held.hosts} == {*HOSTS[2:]}
    assert [each.in_process for each in world.rounds[rounds:]] == [True]


@pytest.mark.parametrize(("costs", "early"), [(ChangeCosts(), 20.0), (ChangeCosts(change_seconds=0.2), 3.0)])
def test_hosts_that_are_ready_do_not_wait_long_for_others_that_leave(costs: ChangeCosts, early: float) -> None:
    world = _shrunk("in process", costs)
    before, leave = len(world.rounds), _leaving(world, 60.0)
    world.now = leave - early
    at = _returned(world, 2.0)
    assert {*world.held.hosts} == {*HOSTS}
    assert world.held.since - T0 - at < 2.0
    world.now = leave
    world.settle(2.0)
    assert {*world.held.hosts} == {*HOSTS[2:]}
    assert [each.in_process for each in world.rounds[before:]] == [True, True]


@pytest.mark.parametrize(("mode", "policy"), [("in process", Policy()), ("restart", Policy(weigh_joins=False))])
def test_hosts_join_at_once_where_that_costs_hardly_anything_or_is_not_weighed(mode: str, policy: Policy) -> None:
    world = _shrunk(mode, policy=policy)
    at = _returned(world)
    assert {*world.held.hosts} == {*HOSTS}
    assert world.held.since - T0 - at < 5.0


def test_the_reason_says_what_the_hosts_wait_for() -> None:
    """It does not follow small changes of what is measured, each of which would be another decision."""
    world = _shrunk()
    _returned(world, 1.0)
    decided = world.job.decision
    assert decided.reason == (
        "n5, n6 are ready; joining costs 4 hosts about 10 s: they join when another host leaves, or after 20 s."
    )
    world.costs = replace(MEASURED, start_seconds=8.4)
    world.settle(1.0)
    assert world.job.decision == decided
    world.settle()
    assert world.job.decision.reason == "Run 1 is running on 6 hosts."


def test_hosts_that_go_before_they_have_joined_leave_no_reason() -> None:
    world = _shrunk()
    _returned(world, 1.0)
    for host in HOSTS[4:]:
        world.lose(host)
    world.settle(1.0)
    assert "ready" not in world.job.decision.reason
