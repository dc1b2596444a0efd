"""Who the machine is, read from its metadata: one item a request, all of them stable."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from node_agent.sources import NodeIdentity, SourceUnavailable
from node_agent.sources.http import Reply

Get = Callable[[str], Awaitable[Reply]]

# Region, zone and type are for people: they may hold up the first poll by this many seconds at most.
_DETAILS_SECONDS = 0.3
_IDENTIFIER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a cloud keeps what makes up an identity."""

    uid: str
    region: str
    zone: str
    instance_type: str


async def identify(get: Get, paths: Paths) -> NodeIdentity:
    """The machine; what is for people may be missing.

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
