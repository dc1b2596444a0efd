"""SIGSTOP for longer than the heartbeats amid a reclaim, then SIGCONT: nothing is lost, nobody is stopped for it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simulator.cloud.nodes import worker_pids
from simulator.cloud.trace import Node
from simulator.events import JobEventKind
from simulator.harness import ReplayWorld, ServiceSettings
from simulator.services import JobProcess
from tests.chaos.chaos_points import PointsScene
from tests.chaos.chaos_world import NODES, PLANS, QUICK, announce, nothing_was_lost, take_away
from tests.chaos.conftest import OpenWorld
from tests.testkit.waiting import PATIENCE, until

_FROZEN_SECONDS = 3.0
"""Ten heartbeats, of which three are silence; and then there is time left before the deadline."""
_HEARTBEAT = "0.3"

Who = Callable[[ReplayWorld, JobProcess], int]


def _supervisor(world: ReplayWorld, _job: JobProcess) -> int:
    return world.supervisor.child.pid


def _agent(world: ReplayWorld, _job: JobProcess) -> int:
    return world.nodes.agent(NODES[1]).pid


def _kubeai_run(_world: ReplayWorld, job: JobProcess) -> int:
    return job.child.pid


def _rank_zero(world: ReplayWorld, job: JobProcess) -> int:
    return _process(world, _ring(job)[0])


def _another_rank(world: ReplayWorld, job: JobProcess) -> int:
    return _process(world, next(node for node in NODES[1:3] if node != _ring(job)[0]))


def _ring(job: JobProcess) -> list[Node]:
    return [
        Node(host) for host in [one for one in job.events() if one.kind is JobEventKind.RING_FORMED][-1].texts("hosts")
    ]


def _process(world: ReplayWorld, node: Node) -> int:
    (pid,) = worker_pids(world.paths, node)
    return pid


@asynccontextmanager
async def _frozen(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        await until(lambda: _state(pid) == "T")
        yield
        assert _state(pid) == "T"
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]


_EVERYBODY = (_supervisor, _agent, _kubeai_run, _rank_zero, _another_rank)


def _params() -> Iterator[object]:
    for who in _EVERYBODY:
        for scene in (PointsScene.STOPPING, PointsScene.SHRINKING):
            brief = who is _supervisor and scene is PointsScene.STOPPING
            name = f"{who.__name__.lstrip('_')}-{scene.name.lower()}"
            yield pytest.param(who, scene, id=name, marks=[pytest.mark.brief] * brief)


# Where its silence is heard, and as what. Launchers and training processes say nothing while all is well.
_HEARD = {_supervisor: ("agent-node2", "while a report waits"), _agent: ("supervisor", "agent.silent")}


@pytest.mark.parametrize(("who", "scene"), list(_params()))
async def test_nobody_misses_what_comes_while_it_is_frozen(open_world: OpenWorld, who: Who, scene: PointsScene) -> None:
    """The notices come while one process stands still; the others think what they like, and it is the usual reclaim.

    A supervisor is left by the agents whose reports wait, although their heartbeats are far apart.
    """
    heartbeats = {"JOB_SUPERVISOR_HEARTBEAT_SECONDS": _HEARTBEAT, "JOB_SUPERVISOR_CONNECTION_SECONDS": "2"}
    agents = {
        "NODE_AGENT_HEARTBEAT_SECONDS": "300" if who is _supervisor else _HEARTBEAT,
        # A frozen agent has to come back.
        "NODE_AGENT_WATCHDOG_SECONDS": "0",
    }
    world = await open_world(ServiceSettings({**QUICK.supervisor, **heartbeats}, {**QUICK.agents, **agents}))
    job = world.start_job(PLANS[scene])
    await world.until_training(job, workers=4)
    async with _frozen(who(world, job)):
        await announce(world, scene)
        await asyncio.sleep(_FROZEN_SECONDS)
        if who in _HEARD:
            log, event = _HEARD[who]
            await until(lambda: event in world.paths.log(log).read_text(encoding="utf-8"))
    await take_away(world, scene, job)
    await nothing_was_lost(world, scene, job)
    await world.until(lambda status: len(status.connected()) >= 3, "the agents that are left", PATIENCE)
