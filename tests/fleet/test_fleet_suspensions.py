"""Jobs of a hub that a supervisor in a member suspends and resumes, under the real hub and training-operator."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor.cluster.annotations import REQUESTED, SUSPENDED_BY
from supervisor.jobs.observation import TAKEN_BACK
from tests.controlplane.kinds.operator_world import OperatorWorld, restarted, world
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs
from tests.fleet.fleet_world import ONE, FleetTeam
from tests.testkit.controlplane.binaries import HubProgram
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_ELASTIC = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 3}
World = OperatorWorld[PyTorchJobs]


@asynccontextmanager
async def _supervised(jobs: FleetTeam, directory: Path) -> AsyncIterator[World]:
    """A supervisor in the first member, and a job of three workers there that runs."""
    member = jobs.members[ONE]
    await member.nodes(3)
    await jobs.propagate([ONE])
    async with world(jobs.fleet.members[ONE], member, directory) as one:
        await jobs.hub.submit("j", 3, elastic=_ELASTIC)
        await until(lambda: member.get("j"), "the job is in the member")
        await member.runs("j", 3)
        await one.decided("j", "Running", run=1, workers=3)
        yield one


async def test_a_hub_that_was_told_nothing_undoes_one_suspension_and_the_job_is_left_alone(
    jobs: FleetTeam, tmp_path: Path
) -> None:
    """Also by the next supervisor. Its controller has seen the suspension, which may be the end of the job."""
    member = jobs.members[ONE]
    async with _supervised(jobs, tmp_path / "one") as one, _versions(member, "j") as versions:
        await jobs.reflected("j", checkpoint=None)
        rank_zero = await one.train("j", "worker-0")
        await one.notice([await one.node_of("j", "worker-1")])
        directive = await rank_zero.lines.matching(type="directive", directive="STOP")
        await rank_zero.reports("left", directive)
        await _refused(one, "j")
        one.supervisor.process.kill()
        async with restarted(one, tmp_path / "one") as other:
            await member.annotate("j", on_loss="shrink")
            await jobs.hub.submit("k", 1)
            await until(lambda: _knows(other, "pytorchjob.k"), "the other supervisor has registered a job")
            assert (await other.supervised("j"))["spec"]["ignored"] == [TAKEN_BACK]
            assert _suspensions(versions) == 1


async def test_a_hub_that_was_told_leaves_a_job_suspended_and_smaller(customized: FleetTeam, tmp_path: Path) -> None:
    """Other changes at the hub arrive meanwhile, no pod is made anew, and what is given back is the hub's again."""
    jobs, member = customized, customized.members[ONE]
    async with _supervised(jobs, tmp_path / "one") as one, _versions(member, "j") as versions:
        await jobs.reflected("j")
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        assert (await member.conditions("j"))["Suspended"]
        await until(lambda: _shows_suspended(jobs), "the hub shows that the job is suspended")
        before = _uids(await member.runs("j", 2))
        await one.decided("j", "Running", run=2, workers=2)
        assert (await member.annotations("j"))[REQUESTED] == "3"
        await _arrives(jobs, "None")
        await _interrupt(jobs)
        await _arrives(jobs, "All")
        assert _uids(await member.runs("j", 2)) == before
        await one.withdraw([noticed])
        await one.stop("j", [await one.node_of("j", "worker-0")])
        await one.withdraw([f"node-{number}.{jobs.name}" for number in range(3)])
        await member.runs("j", 3)
        await one.decided("j", "Running", run=3, workers=3)
        assert not {REQUESTED, SUSPENDED_BY} & (await member.annotations("j")).keys()
        assert _suspensions(versions) == 2


async def test_a_job_that_is_deleted_in_the_member_is_another_job_when_the_hub_makes_it_anew(
    customized: FleetTeam, tmp_path: Path
) -> None:
    """Its annotations are gone, so nothing of the suspended one is left."""
    jobs, member = customized, customized.members[ONE]
    async with _supervised(jobs, tmp_path / "one") as one:
        await jobs.reflected("j")
        await one.stop("j", [await one.node_of("j", "worker-1")])
        await one.withdraw([f"node-{number}.{jobs.name}" for number in range(3)])
        first = (await member.get("j"))["metadata"]["uid"]
        await member.delete("j")
        await until(lambda: _is_another(member, first), "the hub has made it anew")
        await member.runs("j", 3)
        stored = await one.decided("j", "Running", workers=3)
        assert stored["spec"]["uid"] != first
        assert not {REQUESTED, SUSPENDED_BY} & (await member.annotations("j")).keys()


async def _refused(one: World, name: str) -> None:
    async def is_refused() -> bool:
        return bool((await one.supervised(name))["spec"].get("ignored") == [TAKEN_BACK])

    await until(is_refused, f"{name} is left alone")


async def _knows(one: World, name: str) -> bool:
    return name in await one.names()


async def _arrives(jobs: FleetTeam, policy: str) -> None:
    """Changes a field at the hub, and returns once the member has it."""
    await jobs.hub.patch("j", {"spec": {"runPolicy": {"cleanPodPolicy": policy}}})

    async def is_there() -> bool:
        return bool((await jobs.members[ONE].get("j"))["spec"]["runPolicy"].get("cleanPodPolicy") == policy)

    await until(is_there, f"cleanPodPolicy {policy} is in the member")


async def _interrupt(jobs: FleetTeam) -> None:
    """Kills the hub's controllers and starts them again; a change that arrives afterwards shows that they work."""
    jobs.fleet.hub.kill(HubProgram.CONTROLLER_MANAGER)
    jobs.fleet.hub.launch(HubProgram.CONTROLLER_MANAGER)


async def _shows_suspended(jobs: FleetTeam) -> bool:
    return (await jobs.hub.conditions("j")).get("Suspended", False)


async def _is_another(member: PyTorchJobs, uid: str) -> bool:
    return bool((await member.get("j"))["metadata"]["uid"] != uid)


def _uids(pods: dict[str, Any]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


@asynccontextmanager
async def _versions(jobs: PyTorchJobs, name: str) -> AsyncIterator[list[Any]]:
    """Every version of a job from now on, as a watch of its API server tells them."""
    versions: list[Any] = []

    async def follow() -> None:
        async for event in jobs.changes(name):
            versions.append(event["object"])  # noqa: PERF401 - the test reads it meanwhile

    following = asyncio.create_task(follow())
    try:
        yield versions
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def _suspensions(versions: list[Any]) -> int:
    """How often a job became suspended."""
    suspended = [bool(each["spec"]["runPolicy"].get("suspend")) for each in versions]
    return sum(now and not before for before, now in zip([False, *suspended], suspended, strict=False))
