"""The supervisor that leads kills itself around each request that it makes for a TrainingJob; another one goes on."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from simulator.cloud.process import CloudChild
from simulator.harness import ServiceSettings
from tests.chaos.chaos_points import ON_CLUSTER, Armed, PointsScene
from tests.chaos.chaos_world import armed_by_signal, fired
from tests.controlplane.line.line_world import LineJob, LineJobPlan, LineWorld, world
from tests.testkit.controlplane.installed import NOTICES
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import PATIENCE, until

pytestmark = pytest.mark.long

LEAD = 13.0
"""Seconds: another one leads after some four, and the agents are back after up to five more."""


_PLANS = {
    # Two of four go and three are needed; then there is room for three.
    PointsScene.STOPPING: LineJobPlan(workers=4, min_workers=3, steps=200, step_seconds=0.1),
    PointsScene.SHRINKING: LineJobPlan(workers=4, min_workers=2, steps=200, step_seconds=0.1),
    # Three of four go; then there is room for two, and later for the others.
    PointsScene.GROWING: LineJobPlan(workers=4, min_workers=2, steps=400, step_seconds=0.1),
}


def _points() -> list[object]:
    everything = os.environ.get("LEADER_FAILPOINTS") == "all"
    points = [one for one in ON_CLUSTER if everything or one.brief]
    return [pytest.param(one, id=str(one), marks=[pytest.mark.brief] * one.brief) for one in points]


@pytest.mark.parametrize("armed", _points())
async def test_the_leader_dies_at_a_point_and_another_one_goes_on(
    plane: ControlPlane, tmp_path: Path, armed: Armed
) -> None:
    """Nothing is lost, nobody is stopped for nothing, no restart is counted, and each notice is known once."""
    async with _two_supervisors(plane, tmp_path, armed) as (one, standby):
        job = await one.job("j", _PLANS[armed.scene])
        await one.training(job, workers=4)
        assert one.supervisor is not None
        leader = one.supervisor.child
        leader.send(signal.SIGUSR1)
        death = asyncio.create_task(_died(leader, armed))
        nodes = await _LIVED[armed.scene](one, job)
        await _nothing_was_lost(one, job, armed.scene)
        if armed.passes > 1 and not death.done():
            death.cancel()
            pytest.skip(f"the scene passes {armed.at} less often")
        died_at = await death
        # Pods of the test before may still be collected, which is noticed as well.
        subjects = [str(each["Subject"]) for each in await one.here.table(NOTICES)]
        assert sorted(each for each in subjects if each.endswith(one.namespace.name)) == sorted(nodes)
        assert standby.running
        print(f"{armed}: decides again {_next_decision(standby) - died_at:.2f} s after the kill")  # noqa: T201 - a figure


@asynccontextmanager
async def _two_supervisors(
    plane: ControlPlane, root: Path, armed: Armed
) -> AsyncIterator[tuple[LineWorld, CloudChild]]:
    given = armed_by_signal(armed)
    supervisor = {**given.supervisor, "JOB_SUPERVISOR_GROWTH_DELAY_SECONDS": "2"}
    async with world(plane, root / "world", ServiceSettings(supervisor, given.agents)) as one:
        await one.add_node("n0", 2)
        await one.nodes("n1", "n2", gpus=1)
        await one.connected()
        yield one, await one.stand_by()


async def _stopped(one: LineWorld, job: LineJob) -> Sequence[str]:
    nodes = await _with_one_worker(one)
    one.notice(nodes, LEAD)
    await one.decided(job, "Suspended", PATIENCE)
    await one.jobs.has_pods(job.name, seconds=PATIENCE)
    await one.take_away(nodes)
    await one.add_node("n3", 1)
    return nodes


async def _shrunk(one: LineWorld, job: LineJob) -> Sequence[str]:
    nodes = (await _with_one_worker(one))[:1]
    deadline = one.notice(nodes, LEAD)
    await one.training(job, workers=3)
    await asyncio.sleep(max(0.0, deadline - time.time()))
    await one.take_away(nodes)
    return nodes


async def _grown(one: LineWorld, job: LineJob) -> Sequence[str]:
    alone = await _with_one_worker(one)
    nodes = sorted({await one.node_of(f"j-worker-{number}") for number in range(4)} - {alone[0]})
    one.notice(nodes, LEAD)
    await one.decided(job, "Suspended", PATIENCE)
    await one.jobs.has_pods(job.name, seconds=PATIENCE)
    await one.take_away(nodes)
    await one.add_node("n3", 1)
    await one.training(job, workers=2)
    await one.add_node("n4", 2)
    await one.training(job, workers=4)
    assert (await one.supervised(job))["status"]["observed"]["run"] == 2

    async def tidied() -> bool:
        return not await one.jobs.scale_outs()

    await until(tidied, "there is no ScaleOut any more")
    return nodes


_LIVED = {PointsScene.STOPPING: _stopped, PointsScene.SHRINKING: _shrunk, PointsScene.GROWING: _grown}


async def _with_one_worker(one: LineWorld) -> list[str]:
    nodes = [await one.node_of(f"j-worker-{number}") for number in range(4)]
    return [node for node in nodes if nodes.count(node) == 1]


async def _died(leader: CloudChild, armed: Armed) -> float:
    await leader.wait(2 * PATIENCE)
    fired(leader, armed)
    return time.time()


async def _nothing_was_lost(one: LineWorld, job: LineJob, scene: PointsScene) -> None:
    status = await one.jobs.phase(job.name, "Succeeded", seconds=90)
    await one.decided(job, "Finished")
    assert not status.get("restartCount")
    verdict = one.verdict(job)
    assert verdict.ok, verdict.failures
    figures = verdict.figures
    stops = int(scene is not PointsScene.SHRINKING)
    assert (figures.suspensions, figures.resumes) == (stops, stops)
    assert set(figures.changes_per_group) <= {1}


def _next_decision(standby: CloudChild) -> float:
    lines = [json.loads(line) for line in standby.log.read_text(encoding="utf-8").splitlines()]
    decided = next(line for line in lines if line["event"] == "job.decided")
    return datetime.fromisoformat(decided["timestamp"]).timestamp()
