"""A pod fits a node by the scheduler's rules."""

import pytest

from supervisor.decide.packing import accepts, how_many
from supervisor.domain.capacity import Demand, Effect, LabelOperator, LabelRequirement, NodeCapacity, Taint, Toleration
from tests.supervisor.decide.capacity_builders import EVERYTHING, GPU, SPOT, demand, fits, labelled, room


@pytest.mark.parametrize(
    ("gpus", "cpu", "count"), [(1, 0, 8), (3, 0, 2), (8, 96, 1), (9, 0, 0), (0, 97, 0), (1, 40, 2), (0, 0, 250)]
)
def test_a_node_takes_as_many_pods_as_its_scarcest_amount_allows(gpus: int, cpu: int, count: int) -> None:
    assert how_many(demand(gpus, cpu=cpu), room("n", 8).free) == count


def test_pods_that_stay_apart_are_one_a_node() -> None:
    assert how_many(demand(1, apart=True), room("n", 8).free) == 1
    assert how_many(demand(1, apart=True), room("n", 0).free) == 0


def test_an_accelerator_may_have_any_name() -> None:
    assert fits(demand(2, scarce="aliyun.com/ppu"), room("n", 2, scarce="aliyun.com/ppu"))
    assert not fits(demand(2, scarce="aliyun.com/ppu"), room("n", 2))


def test_what_a_pod_asks_nothing_of_need_not_be_there() -> None:
    """The scheduler does not look at a request of 0."""
    assert fits(Demand(requests={GPU: 0, "hugepages-2Mi": 0}), NodeCapacity(name="n", free={"pods": 1000}))


@pytest.mark.parametrize("free", [{}, {"pods": 0}, {"pods": -2000}])
def test_a_node_without_room_for_one_more_pod_takes_none(free: dict[str, int]) -> None:
    assert not fits(Demand(), NodeCapacity(name="n", free=free))


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(exists=True), True),
        (Toleration(key="spot", exists=True), True),
        (Toleration(key="spot", value="true"), True),
        (Toleration(key="spot", value="true", effect=Effect.NO_SCHEDULE), True),
        (Toleration(key="spot", value="false"), False),
        (Toleration(key="spot"), False),
        (Toleration(key="other", exists=True), False),
        (Toleration(key="spot", exists=True, effect=Effect.NO_EXECUTE), False),
    ],
)
def test_a_taint_keeps_pods_off_that_do_not_tolerate_it(toleration: Toleration, *, tolerated: bool) -> None:
    """By key, value and effect; whatever is left out of a toleration matches."""
    assert accepts(Demand(tolerations=(toleration,)), room("n", taints=(SPOT,))) == tolerated


def test_every_taint_must_be_tolerated_but_a_preference() -> None:
    other = Taint(key="other", effect=Effect.NO_EXECUTE)
    one = Demand(tolerations=(Toleration(key="spot", exists=True),))
    assert not accepts(one, room("n", taints=(SPOT, other)))
    assert accepts(Demand(tolerations=EVERYTHING), room("n", taints=(SPOT, other)))
    assert accepts(Demand(), room("n", taints=(Taint(key="k", effect=Effect.PREFER_NO_SCHEDULE),)))


def test_a_selector_must_match_whole() -> None:
    node = room("n", labels=labelled(gpu="a10", zone="b"))
    assert accepts(Demand(selector=labelled(gpu="a10", zone="b")), node)
    assert not accepts(Demand(selector=labelled(gpu="a10", zone="c")), node)
    assert not accepts(Demand(selector=labelled(rack="1")), node)


@pytest.mark.parametrize(
    ("operator", "key", "values", "met"),
    [
        (LabelOperator.IN, "zone", ["a", "b"], True),
        (LabelOperator.IN, "zone", ["a"], False),
        (LabelOperator.IN, "absent", [""], False),
        (LabelOperator.NOT_IN, "zone", ["a"], True),
        (LabelOperator.NOT_IN, "zone", ["b"], False),
        (LabelOperator.NOT_IN, "absent", ["a"], True),
        (LabelOperator.EXISTS, "zone", [], True),
        (LabelOperator.EXISTS, "absent", [], False),
        (LabelOperator.DOES_NOT_EXIST, "absent", [], True),
        (LabelOperator.DOES_NOT_EXIST, "zone", [], False),
        (LabelOperator.GT, "generation", ["7"], True),
        (LabelOperator.GT, "generation", ["8"], False),
        (LabelOperator.LT, "generation", ["9"], True),
        (LabelOperator.LT, "generation", ["8"], False),
        (LabelOperator.GT, "absent", ["0"], False),
        (LabelOperator.LT, "zone", ["9"], False),
        (LabelOperator.GT, "generation", ["7_0"], False),
        (LabelOperator.IN, "metadata.name", ["n1"], True),
        (LabelOperator.NOT_IN, "metadata.name", ["n1"], False),
    ],
)
def test_an_affinity_is_understood(operator: LabelOperator, key: str, values: list[str], *, met: bool) -> None:
    asked = Demand(affinity=((LabelRequirement(key=key, operator=operator, values=frozenset(values)),),))
    assert accepts(asked, room("n1", labels=labelled(zone="b", generation="8"))) == met


def test_one_term_of_an_affinity_is_enough_and_must_be_met_whole() -> None:
    zone = LabelRequirement(key="zone", operator=LabelOperator.EXISTS)
    rack = LabelRequirement(key="rack", operator=LabelOperator.EXISTS)
    node = room("n", labels=labelled(zone="a"))
    assert accepts(Demand(affinity=((rack,), (zone,))), node)
    assert not accepts(Demand(affinity=((rack, zone),)), node)
    assert not accepts(Demand(affinity=((),)), node)
