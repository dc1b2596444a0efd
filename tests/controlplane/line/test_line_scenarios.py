"""Less usual events of TrainingJobs while their nodes are reclaimed."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from simulator.events import JobEvent, JobEventKind
from simulator.harness import ServiceSettings
from tests.chaos.chaos_world import QUICK
from tests.controlplane.line.line_world import LineJob, LineJobPlan, LineWorld, world
from tests.controlplane.operator.operator_jobs import names
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

_REPLACED = {"restartPolicy": "Always"}
_EARLY = {"JOB_SUPERVISOR_MARGIN_SECONDS": "5", "JOB_SUPERVISOR_LEAVE_MARGIN_SECONDS": "4"}
"""Time enough for a replacement before the machine goes."""


@pytest.fixture
async def one(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[LineWorld]:
    given = ServiceSettings({**QUICK.supervisor, **_EARLY}, QUICK.agents)
    async with world(plane, tmp_path / "world", given) as here:
        yield here


async def test_two_suspended_jobs_take_turns_where_there_is_room_for_one(one: LineWorld) -> None:
    """Neither takes half of the other's room: one resumes and finishes, then the other does."""
    nodes = await one.nodes("n0", "n1", gpus=2)
    await one.connected()
    plan = LineJobPlan(workers=2, min_workers=2, steps=120, step_seconds=0.1)
    jobs = [await one.job("a", plan), await one.job("b", plan)]
    for job in jobs:
        await one.training(job, workers=2)
    one.notice(nodes, lead=20)
    for job in jobs:
        await one.decided(job, "Suspended")
        await one.jobs.has_pods(job.name)
    await one.take_away(nodes)
    await one.add_node("n2", 2)

    async def phases() -> list[str]:
        return [(await one.supervised(job))["status"]["decision"]["phase"] for job in jobs]

    async def first_is_over() -> bool:
        present = await phases()
        going = [phase for phase in present if phase in ("Resuming", "Running")]
        assert len(going) <= 1, present
        return "Finished" in present

    await until(first_is_over, "one of them has finished", seconds=90)
    for job in jobs:
        await _succeeded(one, job)
        assert (one.verdict(job).figures.suspensions, one.verdict(job).figures.resumes) == (1, 1)


async def test_a_worker_that_is_replaced_while_a_group_is_collected(one: LineWorld) -> None:
    """The noticed one alone is left out, and the replacement joins: nobody is stopped for the one that went."""
    await one.add_node("n0", 3)
    [node] = await one.nodes("n1", gpus=1)
    await one.add_node("n2", 1)
    await one.connected()
    plan = LineJobPlan(workers=4, min_workers=2, steps=150, step_seconds=0.1, worker=_REPLACED)
    job = await one.job("j", plan)
    await one.training(job, workers=4)
    doomed = await _on(one, node)
    other = next(name for name in names("j", range(4), launcher=False) if name not in doomed)
    one.notice([node], lead=60)
    await one.noticed([node])
    await one.jobs.delete_pod(other)
    await one.excluded(job, doomed)
    left = set(names("j", range(5), launcher=False)) - {other, *doomed}
    await one.event(job, lambda events: set(_ring(events)) == left, "the replacement trains")
    await _succeeded(one, job)
    assert one.verdict(job).figures.changes_per_group == (1,)
    assert one.verdict(job).figures.suspensions == 0


async def test_a_node_and_its_pod_are_noticed_by_two_sources(one: LineWorld) -> None:
    """Left out once; when one of the two takes it back the other still counts, and after it the host is back."""
    await one.add_node("n0", 2)
    [node] = await one.nodes("n1", gpus=1)
    await one.connected()
    job = await one.job("j", LineJobPlan(workers=3, min_workers=1, steps=300, step_seconds=0.1))
    await one.training(job, workers=3)
    [pod] = await _on(one, node)
    one.notice([node], lead=60)
    await _pod_says(one, pod, "True")
    await one.noticed([node, f"{one.namespace.name}/{pod}"])
    await one.excluded(job, [pod])
    one.withdraw([node])
    await _withdrawn(one, node)
    assert _exclusions(job)[-1] == (pod,)
    await _pod_says(one, pod, "False")
    await one.excluded(job, [])
    await one.event(job, lambda events: pod in _ring(events), "it is back")
    await _succeeded(one, job)
    assert [each for each in _exclusions(job) if each] == [(pod,)]
    assert one.verdict(job).figures.suspensions == 0


async def test_a_replacement_that_lands_on_a_noticed_node_is_left_out_at_once(one: LineWorld) -> None:
    """It is not deleted and made again and again while the machine lives, and nothing waits for it."""
    await one.add_node("n0", 2)
    [node] = await one.nodes("n1", gpus=2)
    await one.connected()
    job = await one.job("j", LineJobPlan(workers=4, min_workers=2, steps=200, step_seconds=0.1, worker=_REPLACED))
    await one.training(job, workers=4)
    doomed = await _on(one, node)
    deadline = one.notice([node], lead=12)
    await one.excluded(job, doomed)
    replacements = names("j", [4, 5], launcher=False)
    await one.excluded(job, replacements)
    assert sorted(await _on(one, node)) == replacements
    await asyncio.sleep(max(0.0, deadline - time.time()))
    assert sorted(await _on(one, node)) == replacements
    await one.take_away([node])
    await one.add_node("n2", 2)
    await one.training(job, workers=4)
    await _succeeded(one, job)
    assert one.verdict(job).figures.suspensions == 0


async def _succeeded(one: LineWorld, job: LineJob) -> None:
    status = await one.jobs.phase(job.name, "Succeeded", seconds=90)
    assert not status.get("restartCount")
    verdict = one.verdict(job)
    assert verdict.ok, verdict.failures


async def _on(one: LineWorld, node: str) -> list[str]:
    pods = await one.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
    return [pod["metadata"]["name"] for pod in pods["items"] if "worker" in pod["metadata"]["name"]]


async def _pod_says(one: LineWorld, name: str, status: str) -> None:
    """As a virtual node says that its container instance will be gone, or will not."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    said: dict[str, Any] = {"type": "ContainerInstanceExpired", "status": status, "lastTransitionTime": now}
    others = [
        each for each in (await one.namespace.get_pod(name))["status"]["conditions"] if each["type"] != said["type"]
    ]
    await one.api.patch(f"{one.namespace.path}/pods/{name}/status", {"status": {"conditions": [*others, said]}})


async def _withdrawn(one: LineWorld, subject: str) -> None:
    async def told() -> bool:
        notices = await one.here.notices()
        states = [each["status"]["state"] for each in notices if each["spec"]["subject"]["name"] == subject]
        return states == ["withdrawn"]

    await until(told, f"the notice on {subject} is withdrawn")


def _ring(events: Sequence[JobEvent]) -> tuple[str, ...]:
    rings = [event.texts("hosts") for event in events if event.kind is JobEventKind.RING_FORMED]
    return rings[-1] if rings else ()


def _exclusions(job: LineJob) -> list[tuple[str, ...]]:
    return [event.texts("hosts") for event in job.events() if event.kind is JobEventKind.EXCLUSIONS_CHANGED]
