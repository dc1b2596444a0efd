"""What agents say about their machines is shown, and decides which hosts are used first."""

import math
from pathlib import Path
from typing import Any

import grpc
import pytest
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.capacity import Machine, PriceClass
from supervisor.ingest.agent_reports import read_hello
from supervisor.ingest.errors import MalformedError
from tests.testkit.serving import hello, serving

SAID: dict[str, Any] = {
    "cloud": "aws",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "instance_type": "p4d.24xlarge",
    "price_class": wire.PRICE_CLASS_SPOT,
    "spot_strategy": "SpotAsPriceGo",
}
KNOWN = Machine(
    cloud="aws",
    region="us-east-1",
    zone="us-east-1a",
    instance_type="p4d.24xlarge",
    price_class=PriceClass.SPOT,
    spot_strategy="SpotAsPriceGo",
)


def _machine(**fields: Any) -> Machine:
    return read_hello(hello("n1", machine=wire.Machine(**fields)), 1000.0).machine


def test_a_hello_describes_the_machine() -> None:
    assert _machine(**SAID) == KNOWN
    assert _machine(protected_seconds=60.0).protected_until == 1060.0


def test_an_earlier_agent_describes_nothing() -> None:
    assert read_hello(hello("n1"), 1000.0).machine == Machine()
    assert _machine(price_class=17).price_class is PriceClass.UNKNOWN


@pytest.mark.parametrize("field", ["cloud", "region", "zone", "instance_type", "spot_strategy"])
@pytest.mark.parametrize("text", ["x" * 254, "two\nlines"])
def test_a_word_that_nobody_can_read_is_malformed(field: str, text: str) -> None:
    with pytest.raises(MalformedError, match=f"machine.{field} must have"):
        _machine(**{field: text})


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_protection_without_an_end_is_malformed(seconds: float) -> None:
    with pytest.raises(MalformedError, match="protected_seconds"):
        _machine(protected_seconds=seconds)


async def test_a_malformed_machine_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        agent = served.peers.stranger(served.peers.tokens.agent("n1"))
        await agent.say(hello=hello("n1", machine=wire.Machine(zone="x\ny")))
        assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_status_shows_the_machine_and_a_later_hello_replaces_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.peers.agent("n1")
        await served.peers.agent("n1", session=11, machine=wire.Machine(**SAID))
        shown = (await served.status())["agents"][0]["machine"]
        assert shown == {
            "cloud": "aws",
            "region": "us-east-1",
            "zone": "us-east-1a",
            "instance_type": "p4d.24xlarge",
            "price_class": "spot",
            "spot_strategy": "SpotAsPriceGo",
            "protected_seconds": None,
        }


async def test_an_update_on_the_stream_replaces_the_machine(tmp_path: Path) -> None:
    """The welcome says that this supervisor takes updates."""
    async with serving(tmp_path) as served:
        agent = served.peers.stranger(served.peers.tokens.agent("n1"))
        await agent.say(hello=hello("n1", machine=wire.Machine(cloud="aws")))
        assert (await agent.read("welcome")).machine_updates
        await agent.say(machine=wire.Machine(cloud="aws", zone="z-1"))
        await agent.notices("n1")
        [shown] = (await served.status())["agents"]
        assert (shown["machine"]["cloud"], shown["machine"]["zone"]) == ("aws", "z-1")
        assert shown["sources"] == [{"source": "metadata", "state": "clear"}]


async def test_a_malformed_update_ends_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1")
        await agent.say(machine=wire.Machine(zone="x\ny"))
        assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    """As every version has done: a kind that it does not know changes nothing, and the stream goes on."""
    later = wire.AgentMessage()
    later.MergeFromString(bytes([15 << 3 | 2, 1, 0]))  # Field 15, of one byte.
    assert later.WhichOneof("message") is None
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1")
        await agent.call.write(later)
        await agent.notices("n1")


async def test_a_run_prefers_machines_that_are_not_spot(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for node, price in (("n1", wire.PRICE_CLASS_SPOT), ("n2", wire.PRICE_CLASS_ON_DEMAND)):
            await served.peers.agent(node, machine=wire.Machine(price_class=price))
        launcher = await served.peers.launcher("job", ["n1", "n2"], min_workers=1, requested_workers=1, max_workers=1)
        assert (await launcher.lines.matching(order="run"))["hosts"] == ["n2"]
