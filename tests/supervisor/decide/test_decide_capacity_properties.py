"""Properties of capacity decisions, compared with an exhaustive search."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.capacity import GrowthCandidate, NodesByNotice, PendingJob, RunningJobs, allocate
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import NodeCapacity, Pods, ResourceRequest
from supervisor.domain.ids import JobName
from tests.supervisor.decide.capacity_builders import (
    CORDON,
    EVERYTHING,
    SPOT,
    applicant,
    demand,
    fits,
    labelled,
    reservation,
    room,
)
from tests.supervisor.decide.capacity_oracle import bindable, most_workers, pods_of
from tests.testkit.properties import examples

NEVER, PROBING = Policy(probe_seconds=0), Policy(probe_seconds=300)
_EXAMPLES = examples(75)


@dataclass(frozen=True)
class PackingScene:
    jobs: tuple[PendingJob, ...]
    nodes: tuple[NodeCapacity, ...]


_ZONES = st.sampled_from(["a", "b"])
_DEMANDS = st.builds(
    demand,
    st.integers(0, 3),
    cpu=st.integers(0, 3),
    selector=st.one_of(st.just(labelled()), st.builds(lambda zone: labelled(zone=zone), _ZONES)),
    tolerations=st.sampled_from([(), EVERYTHING]),
)


@st.composite
def _free_capacity(draw: st.DrawFn, most: int = 4) -> tuple[NodeCapacity, ...]:
    return tuple(
        room(
            f"n{number}",
            draw(st.integers(0, 4)),
            cpu=draw(st.integers(0, 6)),
            pods=draw(st.sampled_from([0, 2, 250])),
            taints=draw(st.sampled_from([(), (SPOT,)])),
            labels=labelled(zone=draw(_ZONES)),
        )
        for number in range(draw(st.integers(0, most)))
    )


_NONE: st.SearchStrategy[tuple[Pods, ...]] = st.just(())
_OTHERS = st.lists(st.builds(Pods, _DEMANDS, st.integers(1, 2)), max_size=2).map(tuple)


@st.composite
def _applicants(
    draw: st.DrawFn, most: int = 3, others: st.SearchStrategy[tuple[Pods, ...]] = _NONE
) -> tuple[PendingJob, ...]:
    def one(name: str) -> PendingJob:
        least = draw(st.integers(1, 3))
        return applicant(
            name,
            least,
            draw(st.integers(least, 4)),
            since=draw(st.integers(0, 2)),
            worker=draw(_DEMANDS),
            launcher=draw(st.one_of(st.none(), _DEMANDS)),
            others=draw(others),
        )

    return tuple(one(f"job-{number}") for number in range(draw(st.integers(1, most))))


_SCENES = st.builds(PackingScene, jobs=_applicants(), nodes=_free_capacity())
_MIXED = st.builds(PackingScene, jobs=_applicants(others=_OTHERS), nodes=_free_capacity())
"""Also with workers that request something else, for which the packer does not try every way of binding them."""


def _granted(jobs: Sequence[PendingJob], nodes: Sequence[NodeCapacity]) -> dict[JobName, int]:
    granted = allocate(jobs, (), NodesByNotice(usable=nodes), NEVER)
    return {name: len(grant.hosts) for name, grant in granted.items()}


def _longest_waiting(jobs: Sequence[PendingJob]) -> PendingJob:
    return min(jobs, key=lambda each: (each.job.decision.waiting_since, each.job.name))


@_EXAMPLES
@given(_MIXED)
def test_never_more_is_granted_than_there_is(scene: PackingScene) -> None:
    """All pods of all jobs that were granted anything could be bound at once."""
    granted = _granted(scene.jobs, scene.nodes)
    pods = [
        pod for each in scene.jobs if each.job.name in granted for pod in pods_of(each.request, granted[each.job.name])
    ]
    assert bindable(pods, scene.nodes)


@_EXAMPLES
@given(_MIXED)
def test_a_job_is_granted_all_or_nothing(scene: PackingScene) -> None:
    """At least its minimum and at most what it asked for, and hosts of its own."""
    granted = allocate(scene.jobs, (), NodesByNotice(usable=scene.nodes), NEVER)
    for each in scene.jobs:
        grant, spec = granted.get(each.job.name), each.job.spec
        assert grant is None or spec.min_workers <= len(grant.hosts) <= spec.requested_workers
        assert grant is None or grant.hosts <= each.job.observed.hosts


@_EXAMPLES
@given(_SCENES)
def test_the_longest_waiting_never_starves(scene: PackingScene) -> None:
    """It is granted as much as there is any way of binding, whoever else waits."""
    job = _longest_waiting(scene.jobs)
    most = most_workers(job.request, job.job.spec.requested_workers, scene.nodes)
    enough = most if most >= job.job.spec.min_workers else 0
    assert _granted(scene.jobs, scene.nodes).get(job.job.name, 0) == enough


@_EXAMPLES
@given(_MIXED, st.randoms(use_true_random=False))
def test_no_order_matters(scene: PackingScene, shuffle: Random) -> None:
    jobs, nodes = list(scene.jobs), list(scene.nodes)
    shuffle.shuffle(jobs)
    shuffle.shuffle(nodes)
    assert _granted(jobs, nodes) == _granted(scene.jobs, scene.nodes)


@_EXAMPLES
@given(_SCENES, _free_capacity(2))
def test_more_nodes_never_take_from_the_longest_waiting(scene: PackingScene, more: tuple[NodeCapacity, ...]) -> None:
    job = _longest_waiting(scene.jobs).job.name
    nodes = (*scene.nodes, *(replace(each, name=f"more-{each.name}") for each in more))
    assert _granted(scene.jobs, scene.nodes).get(job, 0) <= _granted(scene.jobs, nodes).get(job, 0)


@_EXAMPLES
@given(_SCENES, _applicants(1), st.integers(1, 4))
def test_what_was_promised_is_granted_to_nobody_else(
    scene: PackingScene, resuming: tuple[PendingJob, ...], pods: int
) -> None:
    """Where there was room for the promised pods, there still is beside all that is granted."""
    kept = reservation(replace(resuming[0], request=ResourceRequest(worker=resuming[0].request.worker)), pods)
    promised = [kept.request.worker] * pods
    if not bindable(promised, scene.nodes):
        return
    granted = allocate(scene.jobs, (kept,), NodesByNotice(usable=scene.nodes), NEVER)
    given = [
        pod
        for each in scene.jobs
        if each.job.name in granted
        for pod in pods_of(each.request, len(granted[each.job.name].hosts))
    ]
    assert bindable([*promised, *given], scene.nodes)


@_EXAMPLES
@given(_MIXED, _free_capacity(3))
def test_a_job_is_held_up_exactly_while_a_doomed_node_could_take_a_pod(
    scene: PackingScene, noticed: tuple[NodeCapacity, ...]
) -> None:
    """Such a job gets nothing, not even a try; the others get what they would without it."""
    noticed = tuple(replace(each, taints=(*each.taints, CORDON)) for each in noticed)
    granted = allocate(scene.jobs, (), NodesByNotice(usable=scene.nodes, noticed=noticed), PROBING)
    for each in scene.jobs:
        grant = granted.get(each.job.name)
        could = any(
            fits(pod, node)
            for node in noticed
            for pod in [each.request.worker, *(beside.demand for beside in each.request.beside)]
        )
        assert (grant is not None and grant.held_up) == could
        assert grant is None or not (grant.held_up and grant.hosts)
    free = [each for each in scene.jobs if not (g := granted.get(each.job.name)) or not g.held_up]
    alone = allocate(free, (), NodesByNotice(usable=scene.nodes), PROBING)
    assert {name: grant for name, grant in granted.items() if not grant.held_up} == alone


@_EXAMPLES
@given(_MIXED, _applicants(2), st.integers(1, 4))
def test_growing_takes_nothing_from_those_that_wait(
    scene: PackingScene, growing: tuple[PendingJob, ...], more: int
) -> None:
    """They get what they would without it; what they and the growing jobs get could be bound at once."""
    names = {each.job.name: replace(each.job, name=JobName(f"grows-{each.job.name}")) for each in growing}
    growth_candidates = [GrowthCandidate(job=names[each.job.name], request=each.request, more=more) for each in growing]
    nodes = NodesByNotice(usable=scene.nodes)
    without = allocate(scene.jobs, (), nodes, PROBING)
    granted = allocate(scene.jobs, (), nodes, PROBING, RunningJobs(growth_candidates=growth_candidates))
    assert {name: grant for name, grant in granted.items() if not grant.more} == without
    pods = [
        pod
        for each in scene.jobs
        if each.job.name in granted and not granted[each.job.name].probe
        for pod in pods_of(each.request, len(granted[each.job.name].hosts))
    ]
    for grower in growth_candidates:
        grant = granted.get(grower.job.name)
        assert grant is None or 0 < grant.more <= more
        pods += [grower.request.worker] * (0 if grant is None else grant.more)
    assert bindable(pods, scene.nodes)
