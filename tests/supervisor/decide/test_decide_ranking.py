"""Where there is a choice, the hosts that are least likely to go soon are used first."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.grant import BY_NAME, Ranking, grants
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, PriceClass
from supervisor.domain.ids import Host
from supervisor.domain.notice import SIMULATED, NoticeClass, NoticeState
from tests.supervisor.decide.decide_builders import (
    T0,
    decide,
    first,
    hosts,
    notice,
    running_job,
    seeing,
    spec,
    waiting_job,
)

SPOT, ON_DEMAND = Machine(price_class=PriceClass.SPOT), Machine(price_class=PriceClass.ON_DEMAND)
PROTECTED = replace(SPOT, protected_until=T0 + 60)
HINT = replace(notice(1, left=None), notice_class=NoticeClass.HINT)
SOON = replace(notice(1, left=7200), notice_class=NoticeClass.SCHEDULED)
LATE = replace(SOON, deadline=T0 + 864000)
POOL = replace(SPOT, cloud="aws", zone="a", instance_type="p4d")


def _ranking(machines: Mapping[Host, Machine], **facts: object) -> Ranking:
    """A ranking at T0 of these machines and of unknown ones."""
    return Ranking(
        machine=lambda host: machines.get(host, UNKNOWN_MACHINE),
        now=T0,
        **facts,  # type: ignore[arg-type]  # Names are its fields.
    )


def _ranked(machines: Mapping[Host, Machine] = MappingProxyType({}), **facts: object) -> list[str]:
    return list(_ranking(machines, **facts).ordered(first(3)))


@pytest.mark.parametrize(
    ("machines", "order"),
    [
        ({"n1": SPOT, "n3": ON_DEMAND}, ["n3", "n2", "n1"]),
        ({"n1": SPOT, "n2": SPOT, "n3": PROTECTED}, ["n3", "n1", "n2"]),
        ({"n1": SPOT, "n2": SPOT, "n3": replace(PROTECTED, protected_until=T0)}, ["n1", "n2", "n3"]),
        ({}, ["n1", "n2", "n3"]),
    ],
    ids=["price", "protection", "protection that is over", "nothing known"],
)
def test_machines_decide(machines: dict[Host, Machine], order: list[str]) -> None:
    assert _ranked(machines=machines) == order


def test_a_host_with_a_hint_comes_last() -> None:
    assert _ranked(ahead={"n1": [HINT]}) == ["n2", "n3", "n1"]


def test_a_host_that_goes_later_comes_before_one_that_goes_sooner() -> None:
    assert _ranked(ahead={"n1": [SOON], "n2": [LATE, SOON], "n3": [LATE]}) == ["n3", "n1", "n2"]
    assert _ranked(ahead={"n1": [LATE]}) == ["n2", "n3", "n1"]


def test_a_pool_that_is_being_reclaimed_comes_last() -> None:
    machines = {Host("n1"): POOL, Host("n2"): replace(POOL, zone="b"), Host("n3"): POOL, Host("n9"): POOL}
    assert _ranked(machines=machines, noticed={Host("n9"): notice(9)}) == ["n2", "n1", "n3"]


def test_drills_ended_notices_and_unknown_machines_say_nothing_of_a_pool() -> None:
    machines = {Host(f"n{number}"): POOL for number in (1, 2)} | {Host("n3"): SPOT}
    noticed = {
        Host("n1"): replace(notice(1), source=SIMULATED),
        Host("n2"): notice(2, state=NoticeState.GONE),
        Host("n3"): notice(3),
        Host("n4"): notice(4),
    }
    assert _ranked(machines, noticed=noticed) == ["n1", "n2", "n3"]


def test_the_order_of_the_criteria() -> None:
    """Each host is better by one criterion and worse by all later ones."""
    bad = replace(POOL, price_class=PriceClass.SPOT)
    machines = {
        Host("n6"): replace(bad, price_class=PriceClass.ON_DEMAND),
        Host("n5"): replace(bad, protected_until=T0 + 60),
        Host("n4"): bad,
        Host("n3"): replace(bad, zone="b"),
        Host("n2"): bad,
        Host("n1"): bad,
        Host("n9"): POOL,
    }
    ahead = {"n6": [HINT, SOON], "n5": [HINT, SOON], "n4": [SOON], "n3": [HINT, SOON], "n2": [HINT], "n1": [HINT, SOON]}
    ranking = _ranking(machines, ahead=ahead, noticed={Host("n9"): notice(9)})
    assert ranking.ordered(first(6)) == ["n6", "n5", "n4", "n3", "n2", "n1"]


@given(st.sets(st.sampled_from(sorted(first(8)))), st.integers(0, 9))
def test_without_knowledge_the_names_decide(some: set[Host], count: int) -> None:
    assert BY_NAME.best(some, count) == frozenset(sorted(some)[:count])


@given(st.permutations(sorted(first(6))), st.lists(st.sampled_from([SPOT, ON_DEMAND, PROTECTED, POOL]), min_size=6))
def test_the_order_of_the_facts_does_not_matter(shuffled: list[Host], machines: list[Machine]) -> None:
    ranking = _ranking(dict(zip(sorted(first(6)), machines, strict=False)))
    assert ranking.ordered(shuffled) == ranking.ordered(first(6))
    for one, other in pairwise(ranking.ordered(shuffled)):
        assert ranking.best([one, other], 1) == {one}


# Where it is used


def test_a_run_starts_on_the_best_hosts() -> None:
    ranking = _ranking({Host("n1"): SPOT, Host("n2"): SPOT})
    job = waiting_job(spec(2, 4))
    assert grants([job], first(6), (), ranking) == {job.name: hosts(3, 4, 5, 6)}


def test_a_run_grows_by_the_best_hosts() -> None:
    ranking = Ranking(ahead={"n4": [HINT]}, now=T0)
    job = running_job(spec(2, 4), workers=3)
    job = replace(job, observed=replace(job.observed, hosts=first(6)))
    assert grants([job], hosts(4, 5, 6), (), ranking) == {job.name: hosts(5)}


def test_hosts_above_the_maximum_that_are_not_taken_back_are_the_worst() -> None:
    """Two notices are withdrawn after another host has joined."""
    job = running_job(spec(2, 3), workers=4)
    job = replace(job, decision=replace(job.decision, exclusions=hosts(1, 2)))
    facts = replace(seeing(), ranking=_ranking({Host("n1"): SPOT}))
    assert decide(job, facts).job.decision.hosts == hosts(2, 3, 4)
    assert decide(job, seeing()).job.decision.hosts == hosts(1, 3, 4)
