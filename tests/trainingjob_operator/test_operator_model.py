"""Whatever happens to a job, and wherever the operator is cut off, it comes to what was asked for."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.testkit.properties import examples
from tests.trainingjob_operator.operator_world import World, scale, training_job
from trainingjob_operator.api import RUN_LABEL, Phase

pytestmark = pytest.mark.filterwarnings("error")


def lose_worker(world: World, random: Random) -> None:
    for name in world.running and [random.choice(world.running)]:
        random.choice([world.lose, world.evict, world.delete])(name)


def fail_worker(world: World, random: Random) -> None:
    for name in world.running and [random.choice(world.running)]:
        world.end(name, "Failed")


def lose_launcher(world: World, random: Random) -> None:
    if world.launcher is not None:
        random.choice([world.lose, world.delete, world.evict])("job-launcher")


def suspend(world: World, random: Random) -> None:
    world.suspend(suspended=random.random() < 0.5)


def resize(world: World, random: Random) -> None:
    world.resize(random.randint(1, 6))


def ask(world: World, random: Random) -> None:
    count, name = random.randint(0, 3), f"{len(world.scales)}"
    if random.random() < 0.5:
        world.ask(scale("out", name, toAdd={"count": count}, timeout=20))
    elif random.random() < 0.5:
        world.ask(scale("in", name, toDelete={"count": count}))
    else:
        names = [f"job-worker-{random.randint(0, 8)}" for _ in range(count)]
        world.ask(scale("in", name, toDelete={"podNames": names}))


def pass_time(world: World, random: Random) -> None:
    world.now += random.choice([1.0, 6.0, 60.0, 1000.0])


def change_room(world: World, random: Random) -> None:
    world.room = random.randint(0, 8)


def overwrite_status(world: World, _random: Random) -> None:
    """Another operator has written the status, with the fields that it knows."""
    fields = dict.fromkeys(["run", "next_index", "observed_replicas", "hosts_changed_at", "disrupted_at"])
    world.job, world.overwritten = replace(world.job, status=replace(world.job.status, **fields)), True


EVENTS: list[Callable[[World, Random], None]] = [
    lose_worker,
    fail_worker,
    lose_launcher,
    suspend,
    resize,
    ask,
    pass_time,
    change_room,
    overwrite_status,
]


def check_at_rest(world: World) -> None:
    """Checks what must hold once everything has room and nothing happens any more."""
    status = world.job.status
    if world.job.suspended:
        assert (status.phase, world.pods) == (Phase.SUSPENDED, {})
        return
    assert status.phase == Phase.RUNNING
    assert world.launcher is not None
    assert world.launcher.running
    assert world.listed == status.target_workers == status.current_workers
    assert sorted(world.listed) == world.running, "a worker runs that is no host, or the other way round"
    assert set(world.pods) == {"job-launcher", *world.running}
    assert status.current_scaler is None
    assert all(one.over for one in world.scales.values())
    assert {pod.metadata.labels.get(RUN_LABEL) for pod in world.pods.values()} == {str(status.run)}


@examples(400)
@given(
    random=st.randoms(use_true_random=False),
    steps=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), max_size=14),
)
def test_every_cut_off_operator_comes_to_what_was_asked_for(
    random: Random, steps: list[tuple[Callable[[World, Random], None], int]]
) -> None:
    world = World(training_job(random.randint(1, 5)))
    for event, looks in steps:
        event(world, random)
        for _ in range(looks):
            world.step(random.choice([None, 0, 1, 2]), tells=random.random() < 0.5)
            world.kubelet()
    world.room = 100
    world.settle(lambda number: 1 if number % 3 == 0 else None)
    check_at_rest(world)
    assert world.job.status.restart_count is None, "a reclaim counts as a failure"


@examples(100)
@given(random=st.randoms(use_true_random=False), cuts=st.lists(st.integers(0, 4), max_size=20))
def test_a_start_that_is_cut_off_anywhere_makes_nothing_twice(random: Random, cuts: list[int]) -> None:
    world = World(training_job(random.randint(1, 6)))
    world.settle(lambda number: cuts[number] if number < len(cuts) else None)
    check_at_rest(world)
    assert [len(set(names)) for names in world.used.values()] == [len(names) for names in world.used.values()]
