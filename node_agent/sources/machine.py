"""Reads a machine's identity from its metadata service, one request an item. The items never change."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from node_agent.sources import NodeIdentity, PriceClass, SourceUnavailable
from node_agent.sources.http import Reply

Get = Callable[[str], Awaitable[Reply]]

# All but the id only describe the machine: they may delay the first poll by this many seconds at most.
_DETAILS_SECONDS = 0.3
_IDENTIFIER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Paths:
    """The metadata paths of one cloud.

    Attributes:
        life_cycle: The item that tells spot from the rest; empty where the cloud has none.
        prices: What the values of that item mean.
    """

    cloud: str
    uid: str
    region: str
    zone: str
    instance_type: str
    life_cycle: str = ""
    prices: Mapping[str, PriceClass] = field(default_factory=dict)


async def identify(get: Get, paths: Paths) -> NodeIdentity:
    """Reads the identity; all but the uid may be missing.

    Raises:
        SourceUnavailable: The service does not tell the machine's id now.
    """
    identity = NodeIdentity(await _item(get, paths.uid), cloud=paths.cloud)
    with contextlib.suppress(SourceUnavailable, TimeoutError):
        async with asyncio.timeout(_DETAILS_SECONDS):
            identity = replace(
                identity,
                region=await _item(get, paths.region),
                zone=await _item(get, paths.zone),
                instance_type=await _item(get, paths.instance_type),
            )
            if paths.life_cycle:
                price = paths.prices.get(await _item(get, paths.life_cycle), PriceClass.UNKNOWN)
                identity = replace(identity, price_class=price)
    return identity


async def _item(get: Get, path: str) -> str:
    reply = await get(path)
    text = reply.body.decode("ascii", errors="replace").strip()
    if reply.status != HTTPStatus.OK or not _IDENTIFIER.fullmatch(text):
        raise SourceUnavailable(f"no usable {path}: HTTP {reply.status}")
    return text
