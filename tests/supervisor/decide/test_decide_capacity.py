"""Suspended jobs of a cluster resume on the nodes that there are."""

from dataclasses import replace

import pytest

from supervisor.decide.capacity import (
    GrowthCandidate,
    NodesByNotice,
    PendingJob,
    Reservation,
    RunningJobs,
    allocate,
    first_hosts,
)
from supervisor.decide.grant import Grant
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Demand, LabelOperator, LabelRequirement, NodeCapacity, Pods, ResourceRequest
from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.job import Phase
from tests.supervisor.decide.capacity_builders import (
    CORDON,
    EVERYTHING,
    SPOT,
    applicant,
    demand,
    labelled,
    reservation,
    room,
    waiting,
    worker_names,
)
from tests.supervisor.decide.decide_builders import T0

A, B, C = (cluster_job("ns", "trainingjob", name) for name in "abc")
NEVER = Policy(probe_seconds=0)
PROBING = Policy(probe_seconds=300)


def _shared(
    *pending_jobs: PendingJob,
    nodes: list[NodeCapacity],
    noticed: tuple[NodeCapacity, ...] = (),
    reservations: tuple[Reservation, ...] = (),
    policy: Policy = NEVER,
    running: RunningJobs = RunningJobs(),  # noqa: B008 - frozen
) -> dict[JobName, Grant]:
    return dict(allocate(pending_jobs, reservations, NodesByNotice(usable=nodes, noticed=noticed), policy, running))


def _growing(*growth_candidates: GrowthCandidate, starting: tuple[ResourceRequest, ...] = ()) -> RunningJobs:
    return RunningJobs(growth_candidates=growth_candidates, starting=starting)


def _grower(name: str, more: int, *on: str, worker: Demand | None = None) -> GrowthCandidate:
    """A job that runs on those nodes, on workers of one GPU each unless something else is said."""
    job = waiting(name)
    decision = replace(job.decision, phase=Phase.RUNNING, waiting_since=None)
    request = ResourceRequest(worker=worker or demand(1), launcher=demand(cpu=90))
    return GrowthCandidate(
        job=replace(job, decision=decision), request=request, more=more, nodes=frozenset(map(Host, on))
    )


def _workers(granted: dict[JobName, Grant]) -> dict[JobName, int]:
    return {name: len(grant.hosts) for name, grant in granted.items()}


def test_a_job_gets_all_it_asked_for_or_what_is_enough_or_nothing() -> None:
    job = applicant("a", 2, 4)
    assert _workers(_shared(job, nodes=[room("n1", 8)])) == {A: 4}
    assert _workers(_shared(job, nodes=[room("n1", 1), room("n2", 2)])) == {A: 3}
    assert _shared(job, nodes=[room("n1", 1)]) == {}


def test_a_start_may_need_more_than_going_on_does() -> None:
    """A command that says how many processes it starts waits for as many."""
    job = applicant("a", 2, 4)
    fixed = replace(job, job=replace(job.job, spec=replace(job.job.spec, least_to_start=4)))
    assert _shared(fixed, nodes=[room("n1", 3)]) == {}
    assert _workers(_shared(fixed, nodes=[room("n1", 4)])) == {A: 4}


def test_a_job_takes_only_room_that_its_size_can_include() -> None:
    """What is left over stays free for the next one."""
    job, other = applicant("a", 2, 4), applicant("b", 1, 1, since=1)
    pairs = replace(job, job=replace(job.job, spec=replace(job.job.spec, worker_multiple=2)))
    assert _workers(_shared(pairs, other, nodes=[room("n1", 3)])) == {A: 2, B: 1}
    assert _shared(pairs, nodes=[room("n1", 1)]) == {}


def test_capacity_for_one_of_two_goes_to_the_longest_waiting() -> None:
    pair = applicant("a", 3, 4, since=2), applicant("b", 3, 4, since=1)
    assert _workers(_shared(*pair, nodes=[room("n1", 4)])) == {B: 4}
    assert _workers(_shared(*pair, nodes=[room("n1", 7)])) == {B: 4, A: 3}


def test_what_is_too_little_for_the_first_is_the_next_ones() -> None:
    """Nodes do not lie idle for a job that cannot start on them."""
    pair = applicant("a", 8, 8), applicant("b", 2, 2, since=5)
    assert _workers(_shared(*pair, nodes=[room("n1", 4)])) == {B: 2}


def test_what_was_promised_to_a_resuming_job_is_kept() -> None:
    """Only for the pods that have no node yet: the others' room is taken already."""
    resuming = reservation(applicant("a"), workers=3)
    assert _workers(_shared(applicant("b", 2, 4), nodes=[room("n1", 8)], reservations=(resuming,))) == {B: 4}
    assert _workers(_shared(applicant("b", 2, 4), nodes=[room("n1", 5)], reservations=(resuming,))) == {B: 2}
    assert _shared(applicant("b", 2, 4), nodes=[room("n1", 4)], reservations=(resuming,)) == {}
    bound = replace(resuming, workers=0)
    assert _workers(_shared(applicant("b", 2, 4), nodes=[room("n1", 4)], reservations=(bound,))) == {B: 4}


def test_a_launcher_that_was_promised_room_has_it() -> None:
    resuming = reservation(applicant("a", launcher=demand(cpu=90)), workers=0, launcher=True)
    other = applicant("b", 1, 1, worker=demand(1, cpu=10))
    assert _shared(other, nodes=[room("n1", 8)], reservations=(resuming,)) == {}
    assert _workers(_shared(other, nodes=[room("n1", 8)], reservations=(replace(resuming, launcher=False),))) == {B: 1}


def test_the_launcher_counts_too() -> None:
    job = applicant("a", 2, 4, worker=demand(1, cpu=10), launcher=demand(cpu=20, selector=labelled(pool="cpu")))
    gpus = room("n1", 8)
    assert _shared(job, nodes=[gpus]) == {}
    assert _shared(job, nodes=[gpus, room("n2", cpu=10, labels=labelled(pool="cpu"))]) == {}
    assert _workers(_shared(job, nodes=[gpus, room("n2", cpu=20, labels=labelled(pool="cpu"))])) == {A: 4}


def test_the_launcher_takes_the_place_that_costs_the_fewest_workers() -> None:
    """Where workers went first there would be no room for it."""
    job = applicant("a", 1, 8, worker=demand(1, cpu=8), launcher=demand(cpu=16))
    costs_two, costs_one = room("n1", 4, cpu=34), room("n2", 4, cpu=40)
    assert _workers(_shared(job, nodes=[costs_two, costs_one])) == {A: 7}
    assert _workers(_shared(job, nodes=[costs_two])) == {A: 2}
    assert _workers(_shared(job, nodes=[costs_two, room("n3", 4, cpu=48)])) == {A: 8}


def test_a_launcher_goes_where_no_accelerators_are() -> None:
    job = applicant("a", 1, 1, launcher=demand(cpu=90))
    other = applicant("b", 1, 1, since=1, worker=demand(1, cpu=90))
    assert _workers(_shared(job, other, nodes=[room("n1", 2), room("n2", 0)])) == {A: 1, B: 1}


def test_workers_of_another_role_have_a_size_of_their_own() -> None:
    """Two parameter servers need no GPU; where they have no room, there is no run."""
    servers = (Pods(demand(cpu=90), 2),)
    job = applicant("a", 4, 6, others=servers)
    cpus = [room("n2"), room("n3")]
    assert _workers(_shared(job, nodes=[room("n1", 4, cpu=8), *cpus])) == {A: 6}
    assert _workers(_shared(job, nodes=[room("n1", 2, cpu=8), *cpus])) == {A: 4}
    assert _shared(job, nodes=[room("n1", 1, cpu=8), *cpus]) == {}
    assert _shared(job, nodes=[room("n1", 8, cpu=8), cpus[0]]) == {}


def test_workers_of_another_role_take_the_places_that_cost_the_fewest_workers() -> None:
    job = applicant("a", 2, 10, worker=demand(1, cpu=8), others=(Pods(demand(cpu=16), 2),))
    assert _workers(_shared(job, nodes=[room("n1", 4, cpu=34), room("n2", 4, cpu=40), room("n3", 1, cpu=8)])) == {A: 8}


def test_a_run_is_not_smaller_than_its_fixed_part() -> None:
    job = applicant("a", 1, 1, others=(Pods(demand(cpu=1), 2),))
    assert _shared(job, nodes=[room("n1", 8)]) == {}


def test_workers_of_another_role_that_were_promised_room_have_it() -> None:
    resuming = reservation(applicant("a", others=(Pods(demand(cpu=90), 1),)), workers=0, others=1)
    other = applicant("b", 1, 1, worker=demand(1, cpu=10))
    assert _shared(other, nodes=[room("n1", 8)], reservations=(resuming,)) == {}
    assert _workers(_shared(other, nodes=[room("n1", 8)], reservations=(replace(resuming, others=0),))) == {B: 1}


def test_a_doomed_node_that_could_take_a_worker_of_another_role_holds_the_job_up() -> None:
    job = applicant("a", others=(Pods(demand(cpu=1), 1),))
    assert _shared(job, nodes=[room("n1", 8)], noticed=(room("n2", 0),)) == {A: Grant(held_up=True)}


def test_only_nodes_that_suit_a_pod_count() -> None:
    suits = room("n1", 8, taints=(SPOT,), labels=labelled(gpu="a10"))
    chosen = demand(1, tolerations=EVERYTHING, selector=labelled(gpu="a10"))
    assert _workers(_shared(applicant("a"), applicant("b", worker=chosen, since=1), nodes=[suits])) == {B: 4}


def test_a_job_waits_while_a_doomed_node_could_take_one_of_its_pods() -> None:
    """Whatever room there is elsewhere: the scheduler decides. Typical pods tolerate a cordon, too."""
    job = applicant("a", worker=demand(1, tolerations=EVERYTHING))
    noticed = room("n2", 1, taints=(CORDON, SPOT))
    assert _shared(job, nodes=[room("n1", 8)], noticed=(noticed,)) == {A: Grant(held_up=True)}
    full = room("n2", 0, taints=(CORDON,))
    assert _workers(_shared(job, nodes=[room("n1", 8)], noticed=(full,))) == {A: 4}
    sensitive = applicant("a")
    assert _workers(_shared(sensitive, nodes=[room("n1", 8)], noticed=(noticed,))) == {A: 4}


def test_a_doomed_node_that_could_take_the_launcher_holds_the_job_up() -> None:
    """A launcher there would be stopped as soon as it ran."""
    job = applicant("a", launcher=demand(cpu=1))
    assert _shared(job, nodes=[room("n1", 8)], noticed=(room("n2", 0),)) == {A: Grant(held_up=True)}


def test_a_job_that_is_held_up_keeps_nothing_from_others() -> None:
    held, other = applicant("a", worker=demand(1, tolerations=EVERYTHING)), applicant("b", since=1)
    granted = _shared(held, other, nodes=[room("n1", 4)], noticed=(room("n2", 1, taints=(SPOT,)),))
    assert granted == {A: Grant(held_up=True), B: Grant(worker_names(4))}


def test_a_grant_is_the_first_of_the_operators_names() -> None:
    """It counts from 0; 10 comes after 2."""
    assert first_hosts(waiting("a", 1, 12), 11) == worker_names(11)


def test_a_job_gets_no_more_than_it_has_names_for() -> None:
    short = replace(applicant("a", 2, 4), job=waiting("a", 2, 4, listed=3))
    assert _shared(short, nodes=[room("n1", 8)]) == {A: Grant(worker_names(3))}


def test_virtual_nodes_count_by_what_they_say() -> None:
    taint = replace(SPOT, key="virtual-kubelet.io/provider", value="alibabacloud")
    virtual = room("virtual", 1000, taints=(taint,), labels=labelled(type="virtual-kubelet"))
    assert _workers(_shared(applicant("a", worker=demand(1, tolerations=EVERYTHING)), nodes=[virtual])) == {A: 4}
    assert _shared(applicant("a"), nodes=[virtual]) == {}


def test_a_job_without_room_may_try() -> None:
    """All it asked for, and the least that is enough at every other try."""
    job = applicant("a", 2, 4)
    assert _shared(job, nodes=[], policy=PROBING) == {A: Grant(worker_names(4), probe=True)}
    failed = replace(job, job=replace(job.job, decision=replace(job.job.decision, failed_resumes=1)))
    assert _shared(failed, nodes=[], policy=PROBING) == {A: Grant(worker_names(2), probe=True)}


def test_one_job_tries_at_a_time_for_each_kind_of_capacity() -> None:
    a, b = applicant("a", since=1), applicant("b")
    c = applicant("c", worker=demand(1, scarce="amd.com/gpu"), since=5)
    assert _shared(a, b, c, nodes=[], policy=PROBING).keys() == {B, C}
    tired = replace(b, job=replace(b.job, decision=replace(b.job.decision, not_before=T0 + 400)))
    assert _shared(a, tired, nodes=[], policy=PROBING).keys() == {A}
    tries = reservation(b, workers=4, probing=True)
    assert _shared(a, c, nodes=[], reservations=(tries,), policy=PROBING).keys() == {C}


def test_nobody_tries_while_a_job_of_that_kind_is_about_to_start() -> None:
    """Its pods would take what there is for the other's."""
    a, b = applicant("a", 4, 4), applicant("b", 1, 2, since=1)
    assert _shared(a, b, nodes=[room("n1", 2)], policy=PROBING) == {B: Grant(worker_names(2))}
    for resumes in (reservation(b, workers=1), reservation(b, workers=0, launcher=True)):
        assert _shared(a, nodes=[], reservations=(resumes,), policy=PROBING) == {}
    bound = reservation(b, workers=0)
    assert _shared(a, nodes=[], reservations=(bound,), policy=PROBING) == {A: Grant(worker_names(4), probe=True)}
    other = applicant("c", 1, 1, worker=demand(1, scarce="amd.com/gpu"))
    granted = _shared(a, other, nodes=[room("n1", 1, scarce="amd.com/gpu")], policy=PROBING)
    assert granted == {C: Grant(worker_names(1)), A: Grant(worker_names(4), probe=True)}


def test_nobody_tries_while_a_doomed_node_could_take_the_pods() -> None:
    """They would land there."""
    job = applicant("a", 2, 4)
    assert _shared(job, nodes=[], noticed=(room("n1", 1),), policy=PROBING) == {A: Grant(held_up=True)}


@pytest.mark.parametrize("reverse", [False, True])
def test_equally_long_waiting_jobs_have_their_names_order(*, reverse: bool) -> None:
    pair = [applicant("a", 3, 3), applicant("b", 3, 3)]
    assert _workers(_shared(*(reversed(pair) if reverse else pair), nodes=[room("n1", 3)])) == {A: 3}


def test_a_job_that_runs_grows_by_what_is_left() -> None:
    """All that it lacks or what there is, in the order of their names; the launcher is there already."""
    assert _shared(nodes=[room("n1", 4, cpu=1)], running=_growing(_grower("a", 2))) == {A: Grant(more=2)}
    pair = _growing(_grower("b", 2), _grower("a", 3))
    assert _shared(nodes=[room("n1", 4)], running=pair) == {A: Grant(more=3), B: Grant(more=1)}
    assert _shared(nodes=[room("n1", 0)], running=pair) == {}


def test_nobody_grows_while_a_job_of_that_kind_waits() -> None:
    """Whether it gets what there is, is held up, or has too little: it could use it. Nor while one starts."""
    grows, nodes = _growing(_grower("a", 1)), [room("n1", 5)]
    assert _shared(applicant("b", 4, 4), nodes=nodes, running=grows) == {B: Grant(worker_names(4))}
    assert _shared(applicant("b", 8, 8), nodes=nodes, running=grows) == {}
    noticed = (room("n2", 0, cpu=1, scarce="other"),)
    held = applicant("b", 1, 1, launcher=demand(cpu=1))
    assert _shared(held, nodes=nodes, noticed=noticed, running=grows) == {B: Grant(held_up=True)}
    starting = _growing(_grower("a", 1), starting=(ResourceRequest(worker=demand(8)),))
    assert _shared(nodes=nodes, running=starting) == {}
    assert _shared(nodes=nodes, running=grows, reservations=(reservation(applicant("b"), workers=1),)) == {}
    elsewhere = ResourceRequest(worker=demand(8, scarce="amd.com/gpu"))
    other = _growing(_grower("a", 1), starting=(elsewhere,))
    assert _shared(nodes=nodes, running=other) == {A: Grant(more=1)}


def test_nobody_grows_while_a_doomed_node_could_take_the_new_worker() -> None:
    """It would be left out as soon as it ran."""
    grows = _growing(_grower("a", 1))
    assert _shared(nodes=[room("n1", 4)], noticed=(room("n2", 1),), running=grows) == {}
    assert _shared(nodes=[room("n1", 4)], noticed=(room("n2", 0),), running=grows) == {A: Grant(more=1)}


def test_room_that_a_growing_job_was_promised_is_kept() -> None:
    grows = reservation(applicant("a"), workers=2)
    assert _workers(_shared(applicant("b", 2, 4), nodes=[room("n1", 4)], reservations=(grows,))) == {B: 2}


@pytest.mark.parametrize(
    "affinity", [(), ((LabelRequirement(key="pool", operator=LabelOperator.IN, values=frozenset("x")),),)]
)
def test_workers_that_want_a_node_each_grow_onto_others(affinity: tuple[tuple[LabelRequirement, ...], ...]) -> None:
    """The nodes that the job is on are taken, whatever room they have."""
    apart = demand(1, apart=True, affinity=affinity)
    nodes = [room(name, 4, labels=labelled(pool="x")) for name in ("n1", "n2", "n3")]
    grows = _growing(_grower("a", 4, "n1", worker=apart))
    assert _shared(nodes=nodes, running=grows) == {A: Grant(more=2)}
    assert _shared(nodes=nodes, running=_growing(_grower("a", 4, "n1", "n2", "n3", worker=apart))) == {}
