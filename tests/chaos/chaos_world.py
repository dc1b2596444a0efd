"""A small real world with short times, and checks of its final state, whichever process was killed in between."""

import asyncio
import signal
from collections.abc import Awaitable, Collection
from contextlib import suppress
from dataclasses import replace

from simulator import services
from simulator.cloud.process import CloudChild, ProcessEnded
from simulator.cloud.schedule import AddNode, KillNode, ScheduledNotice
from simulator.cloud.trace import Node
from simulator.harness import ReplayWorld, ServiceSettings
from simulator.judge import Failure
from simulator.services import JobProcess, ServedJobPlan
from tests.chaos.chaos_points import Armed, PointsScene
from tests.testkit.waiting import PATIENCE, until

QUICK = ServiceSettings(
    supervisor={
        "JOB_SUPERVISOR_WINDOW_SECONDS": "0.5",
        "JOB_SUPERVISOR_MARGIN_SECONDS": "2",
        "JOB_SUPERVISOR_LEAVE_MARGIN_SECONDS": "1",
        "JOB_SUPERVISOR_RESUME_DELAY_SECONDS": "0.3",
        "JOB_SUPERVISOR_LAUNCHER_LIVE_SECONDS": "1",
        "JOB_SUPERVISOR_GONE_GRACE_SECONDS": "1",
    },
    agents={"NODE_AGENT_POLL_SECONDS": "0.25"},
)
LEAD = 15.0
"""Seconds from a notice to its deadline: a killed service is back after some two, its peers after up to five more."""
NAME_IS_LIVE = 73

NODES = [Node(f"node{number}") for number in range(1, 5)]
_QUICK_LAUNCHER = ("--discovery-seconds", "0.3")
# Long enough for everything up to the STOP: a job that finishes before is no test.
PLANS = {
    PointsScene.STOPPING: ServedJobPlan(3, 4, steps=200, step_seconds=0.05, launcher_arguments=_QUICK_LAUNCHER),
    PointsScene.SHRINKING: ServedJobPlan(2, 4, steps=200, step_seconds=0.05, launcher_arguments=_QUICK_LAUNCHER),
    PointsScene.ENDING: ServedJobPlan(2, 4, steps=4000, step_seconds=0.05, launcher_arguments=_QUICK_LAUNCHER),
    PointsScene.PLAIN: ServedJobPlan(4, 4, steps=40, step_seconds=0.05, launcher_arguments=_QUICK_LAUNCHER),
}


def plan_of(armed: Armed) -> ServedJobPlan:
    """The job of a scenario: where two absences follow each other, everybody comes back the second time more slowly."""
    plan = PLANS[armed.scene]
    return replace(plan, steps=plan.steps + 120) if armed.passed_at_start else plan


def fired(child: CloudChild, armed: Armed) -> None:
    assert child.exit_code == -signal.SIGKILL, child.tail()
    assert f"failpoint {armed.name}: " in child.log.read_text(encoding="utf-8", errors="replace")


def armed_by_signal(armed: Armed) -> ServiceSettings:
    """Services that begin to count at SIGUSR1, where it is not their start that is meant."""
    if armed.passed_at_start:
        return QUICK
    return ServiceSettings({**QUICK.supervisor, "JOB_SUPERVISOR_FAILPOINT": f"{armed.setting}@USR1"}, QUICK.agents)


async def arm_supervisor(world: ReplayWorld, armed: Armed) -> Awaitable[None]:
    """Arm it, by a restart where its start is meant; what is returned waits for its death and starts it unarmed."""
    if armed.passed_at_start:
        await world.supervisor.stop()
        # It dies as soon as somebody says hello, which may be before it is seen to serve.
        with suppress(ProcessEnded):
            await world.supervisor.start({"JOB_SUPERVISOR_FAILPOINT": armed.setting})
    else:
        world.supervisor.child.send(signal.SIGUSR1)

    async def revive() -> None:
        await world.supervisor.child.wait(PATIENCE)
        fired(world.supervisor.child, armed)
        await world.supervisor.start({"JOB_SUPERVISOR_FAILPOINT": ""})

    return asyncio.create_task(revive(), name=f"revive after {armed}")


async def restart_agent_armed(world: ReplayWorld, node: Node, armed: Armed) -> Awaitable[None]:
    await world.nodes.agent(node).stop()
    polled = world.metadata.poll_count(node)
    child = world.nodes.start_agent(node, {"NODE_AGENT_FAILPOINT": armed.setting})

    async def revive() -> None:
        await child.wait(PATIENCE)
        fired(child, armed)
        world.nodes.start_agent(node)

    task = asyncio.create_task(revive(), name=f"revive after {armed}")
    # Four polls make three clear answers, which are reported; so what comes next is the notice.
    await until(lambda: task.done() or world.metadata.poll_count(node) >= polled + 5)
    return task


async def start_again(world: ReplayWorld, plan: ServedJobPlan) -> JobProcess:
    """As a user does who finds kubeai-run dead: until its name is free again."""
    while True:
        job = services.start_job(plan, world.supervisor, world.paths, {})
        world.jobs.append(job)
        if await _is_accepted(job):
            return job


async def _is_accepted(job: JobProcess) -> bool:
    # All kubeai-runs of a job write to one log: what an earlier one wrote says nothing about this one.
    before = len(job.child.log.read_bytes())
    await until(lambda: not job.child.running or b"(run, run " in job.child.log.read_bytes()[before:])
    return job.child.exit_code != NAME_IS_LIVE


async def announce(world: ReplayWorld, scene: PointsScene) -> None:
    noticed = {PointsScene.STOPPING: NODES[1:3], PointsScene.SHRINKING: NODES[1:2]}.get(scene, [])
    await world.play([ScheduledNotice(0, node, LEAD, "g") for node in noticed])


async def take_away(world: ReplayWorld, scene: PointsScene, job: JobProcess) -> None:
    """The cloud's actions on its nodes in a scene, once the job has made room for them."""
    if scene is PointsScene.STOPPING:
        await world.until(
            lambda status: [one.phase for one in status.jobs] == ["Suspended"], "the job to be suspended", PATIENCE
        )
        await world.play([*(KillNode(0, node) for node in NODES[1:3]), AddNode(0, Node("node5"))])
    if scene is PointsScene.SHRINKING:
        await world.until_training(job, workers=3)
        await world.play([KillNode(0, NODES[1])])


async def nothing_was_lost(
    world: ReplayWorld, scene: PointsScene, job: JobProcess, excused: Collection[Failure] = ()
) -> None:
    """The job has finished, and every invariant holds but those that physics excuses."""
    assert await job.wait(90) == 0, job.child.tail()
    verdict = world.verdict(job)
    assert [one for one in verdict.failures if one.failure not in excused] == []
    assert verdict.figures.parameters_equal
    assert verdict.figures.suspensions == (1 if scene is PointsScene.STOPPING else 0)
    if scene is not PointsScene.PLAIN:
        await _each_notice_is_known_once(world, 2 if scene is PointsScene.STOPPING else 1)


async def _each_notice_is_known_once(world: ReplayWorld, count: int) -> None:
    noticed = [str(node) for node in NODES[1 : count + 1]]
    status = await world.until(lambda status: len(status.notices) >= count, "the notices")
    assert sorted(notice.subject for notice in status.notices) == noticed
    assert {notice.state for notice in status.notices} <= {"active", "gone"}
