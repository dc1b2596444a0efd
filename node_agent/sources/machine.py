"""Reads a machine's identity from its metadata service, one request an item. The items never change."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from node_agent.sources import NodeIdentity, PriceClass, SourceUnavailable
from node_agent.sources.http import Reply, unusable

Get = Callable[[str], Awaitable[Reply]]

# All but the id only describe the machine: they may delay the first poll by this many seconds at most.
_DETAILS_SECONDS = 0.3
_IDENTIFIER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Paths:
    """The metadata paths of one cloud.

    Attributes:
        region: Empty, like each one below, where the cloud has no such item.
        life_cycle: The item that tells spot from the rest.
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
    uid = await item(get, paths.uid)
    found = dict.fromkeys(("region", "zone", "instance_type", "life_cycle"), "")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DETAILS_SECONDS):
            for name in found:
                found[name] = await _optional(get, getattr(paths, name))
    price = paths.prices.get(found.pop("life_cycle"), PriceClass.UNKNOWN)
    return NodeIdentity(uid, cloud=paths.cloud, price_class=price, **found)


async def _optional(get: Get, path: str) -> str:
    try:
        return await item(get, path) if path else ""
    except SourceUnavailable:
        return ""


async def item(get: Get, path: str) -> str:
    """Reads one item, which is a word.

    Raises:
        SourceUnavailable: There is no such item now.
    """
    reply = await get(path)
    text = reply.body.decode("ascii", errors="replace").strip()
    if reply.status != HTTPStatus.OK or not _IDENTIFIER.fullmatch(text):
        raise unusable(f"no usable {path}", reply)
    return text
