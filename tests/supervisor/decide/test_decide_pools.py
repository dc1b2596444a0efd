"""The name of a capacity pool: what is reclaimed together, as the record, the pages and the command call it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.capacity import Machine, MachinePool, PriceClass

_PART = st.text("abc-.", min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("pool", "name", "label"),
    [
        (MachinePool(cloud="c", zone="z", instance_type="t", price_class=PriceClass.SPOT), "c/z/t", "c/z/t"),
        (MachinePool(zone="z", instance_type="t"), "?/z/t", "?/z/t"),
        (MachinePool(cloud="c", instance_type="t"), "", "c/?/t"),
        (MachinePool(cloud="c", zone="z"), "", "c/z/?"),
        (MachinePool(price_class=PriceClass.SPOT), "", "unknown"),
    ],
)
def test_a_pool_has_a_name_if_its_zone_and_type_are_known(pool: MachinePool, name: str, label: str) -> None:
    assert (pool.name, MachinePool.label_of(pool)) == (name, label)


@given(st.builds(Machine, cloud=_PART | st.just(""), zone=_PART, instance_type=_PART))
def test_a_name_is_read_as_the_pool_that_has_it(machine: Machine) -> None:
    assert MachinePool.named(machine.pool_name) == MachinePool(
        cloud=machine.cloud, zone=machine.zone, instance_type=machine.instance_type
    )


def test_a_cloud_may_be_left_out_of_a_name() -> None:
    assert MachinePool.named("/z/t") == MachinePool.named("?/z/t") == MachinePool(zone="z", instance_type="t")


@pytest.mark.parametrize("text", ["", "t", "z/t", "c/z/", "c//t", "c/?/t", "c/z/?", "c/z/t/u", "unknown"])
def test_less_than_zone_and_type_names_no_pool(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|unpack"):
        MachinePool.named(text)
