"""Reads a machine's identity from its metadata service, one request an item. The items never change."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from node_agent.sources import NodeIdentity, SourceUnavailable
from node_agent.sources.http import Reply

Get = Callable[[str], Awaitable[Reply]]

# Region, zone and type are for people: they may delay the first poll by this many seconds at most.
_DETAILS_SECONDS = 0.3
_IDENTIFIER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Paths:
    """The metadata paths of one cloud."""

    uid: str
    region: str
    zone: str
    instance_type: str


async def identify(get: Get, paths: Paths) -> NodeIdentity:
    """Reads the identity; all but the uid may be missing.

    Raises:
        SourceUnavailable: The service does not tell the machine's id now.
    """
    uid = await _item(get, paths.uid)
    try:
        async with asyncio.timeout(_DETAILS_SECONDS):
            return NodeIdentity(
                uid=uid,
                region=await _item(get, paths.region),
                zone=await _item(get, paths.zone),
                instance_type=await _item(get, paths.instance_type),
            )
    except (SourceUnavailable, TimeoutError):
        return NodeIdentity(uid)


async def _item(get: Get, path: str) -> str:
    reply = await get(path)
    text = reply.body.decode("ascii", errors="replace").strip()
    if reply.status != HTTPStatus.OK or not _IDENTIFIER.fullmatch(text):
        raise SourceUnavailable(f"no usable {path}: HTTP {reply.status}")
    return text
