"""The name of a capacity pool: what is reclaimed together, as the record, the pages and the command call it."""

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from supervisor.domain.capacity import Machine, MachinePool, PriceClass
from supervisor.domain.ids import is_name

_PART = st.text("ab-.?/% é", min_size=1, max_size=3) | st.text(max_size=9).filter(is_name)
"""A zone or a type, as any agent may name it."""


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
    """So no two pools have one name."""
    assert MachinePool.named(machine.pool_name) == MachinePool(
        cloud=machine.cloud, zone=machine.zone, instance_type=machine.instance_type
    )


@given(st.builds(Machine, cloud=_PART | st.just(""), zone=_PART, instance_type=_PART))
def test_the_address_of_a_pool_leads_to_it(machine: Machine) -> None:
    """Browsers and servers leave it alone: it has no empty segment, and none that leads upwards, even decoded."""
    address = URL("https://page.example/status/pools/").join(URL(quote(machine.pool_name)))
    assert address.path.removeprefix("/status/pools/") == machine.pool_name
    segments = [unquote(segment) for segment in address.raw_path.split("/")[3:]]
    assert len(segments) == 3
    assert not {"", ".", ".."}.intersection(segments)


def test_a_cloud_may_be_left_out_of_a_name() -> None:
    assert MachinePool.named("/z/t") == MachinePool.named("?/z/t") == MachinePool(zone="z", instance_type="t")


def test_what_is_no_escape_is_read_as_it_is() -> None:
    assert MachinePool.named("c/100%/a%2fb") == MachinePool(cloud="c", zone="100%", instance_type="a/b")


@pytest.mark.parametrize(
    "text", ["", "t", "z/t", "c/z/", "c//t", "c/?/t", "c/z/?", "c/z/t/u", "unknown", "c/z/%00", f"c/z/{'t' * 254}"]
)
def test_less_than_zone_and_type_names_no_pool(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown|unpack"):
        MachinePool.named(text)
