"""An honest client of the attacked supervisor, and the counts of refusals, for all attacks."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol, Self

import grpc
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.job import Phase
from supervisor.refusals import Code, Wire
from tests.testkit.serving import AgentPeer, LauncherPeer, ProcessPeer, ServedPeers, hello
from tests.testkit.waiting import PATIENCE, until

JOB = "honest"
NODES = ["honest-1", "honest-2"]

Counts = Counter[tuple[str, str]]
"""Refusals by wire and code."""


class HostileWorld(Protocol):
    """A supervisor, in this process or in one of its own."""

    @property
    def peers(self) -> ServedPeers:
        """Makes peers of it."""

    async def status(self) -> dict[str, Any]:
        """Return the status as a viewer reads it."""


async def refused(served: HostileWorld) -> Counts:
    return Counter({(each["wire"], each["code"]): each["count"] for each in (await served.status())["refused"]})


async def counted(served: HostileWorld, before: Counts, **codes: int) -> None:
    """Waits until the supervisor has counted exactly these further refusals, each named WIRE_CODE in capitals."""
    expected = before + Counter({_kind(name): count for name, count in codes.items() if count})
    found = before

    async def added() -> bool:
        nonlocal found
        found = await refused(served)
        return found == expected

    await until(added, lambda: f"refused: {dict(found - before)}, expected: {codes}")


def _kind(name: str) -> tuple[str, str]:
    on, _, code = name.partition("_")
    return Wire(on), Code(code)


@dataclass(slots=True)
class Bystander:
    """A job on two nodes with a process of rank 0. All of them are connected and have no reason to stop."""

    world: HostileWorld
    job: str
    agents: dict[str, AgentPeer]
    launcher: LauncherPeer
    process: ProcessPeer
    generation: int

    @classmethod
    async def of(cls, world: HostileWorld, job: str = JOB) -> Self:
        nodes = [f"{job}-1", f"{job}-2"]
        agents = await world.peers.agents(nodes)
        launcher, order = await world.peers.running(job, nodes)
        process = await world.peers.process(order["token"], nodes[0], 0)
        assert (await process.lines.any())["directive"] == "RUN"
        # Whatever its start brings has been said by then.
        await asyncio.gather(process.lines.before_heartbeat(), launcher.lines.before_heartbeat())
        generation = (await _job(world, job))["generation"]
        return cls(world, job, agents, launcher, process, generation)

    async def noticed_nothing(self) -> None:
        """Every stream is the one that it was, and nothing was decided or said."""
        job, status = await _job(self.world, self.job), await self.world.status()
        assert (job["phase"], job["generation"]) == (Phase.RUNNING, self.generation)
        assert not [each for each in status["notices"] if each["subject"] in self.agents]
        assert self.agents.keys() <= {each["node"] for each in status["agents"] if each["connected"]}
        heard = [agent.read("heartbeat") for agent in self.agents.values()]
        await asyncio.gather(*heard, _drained(self.process.lines), _drained(self.launcher.lines))


async def _job(world: HostileWorld, name: str) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = (await world.status())["jobs"]
    return next(each for each in jobs if each["job"] == name)


async def _drained(lines: Any) -> None:
    """Reads up to now: heartbeats alone, the last of which has just come."""
    begun = time.monotonic()
    while True:
        asked = time.monotonic()
        assert await lines.any() == {"type": "heartbeat"}
        if time.monotonic() - asked > 0.02:  # It was waited for: all before it had been there already.
            return
        assert asked - begun < PATIENCE


async def agent_refused(
    peers: ServedPeers, token: str | None, *messages: wire.AgentMessage
) -> tuple[grpc.StatusCode, str]:
    """Sends a message on a stream of its own; returns the status with which the stream ends, and the refusal's code."""
    agent = peers.stranger(token)
    # Only what the refusal waits for: to whom a write fails, gRPC reports that, and not the status that came.
    # Without a hello that is a second for a bad token.
    for message in messages:
        await agent.call.write(message)
    status = await agent.ended()
    return status, str(await agent.call.details()).partition(":")[0]


def said(node: str, **changes: Any) -> wire.AgentMessage:
    return wire.AgentMessage(hello=hello(node, **changes))
