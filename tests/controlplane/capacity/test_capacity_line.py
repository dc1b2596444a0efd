"""Suspended jobs wait for capacity with a real supervisor and agent, as kubectl shows it."""

from pathlib import Path
from typing import Any

from simulator.harness import ServiceSettings
from supervisor.cluster.annotations import OURS, SUSPENDED_BY
from supervisor.jobs.trainingjob.objects import SUSPENDED
from tests.controlplane.line.line_world import OPTED_IN, LineJobPlan, LineWorld, training_job, world
from tests.testkit.controlplane.installed import job_path
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

_PATIENCE = {"JOB_SUPERVISOR_PROBE_SECONDS": "1", "JOB_SUPERVISOR_RESUME_DELAY_SECONDS": "0.5"}


async def _suspend(one: LineWorld, name: str, workers: int, **limits: str) -> None:
    """A job that was suspended before this supervisor knew of it, with those limits for its workers."""
    checkpoint = one.runtime.paths.job(one.namespace.name, name) / "checkpoint"
    spec: Any = training_job(
        one.namespace.name, LineJobPlan(workers=workers, min_workers=workers, steps=2000), checkpoint
    )
    if limits:
        spec["etReplicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}
    await one.jobs.make(name, spec, annotations={**OPTED_IN, SUSPENDED: "true", SUSPENDED_BY: OURS})


async def _decided(one: LineWorld, name: str, phase: str, reason: str) -> Any:
    async def decided() -> Any:
        found = await one.api.get(job_path(f"trainingjob.{name}", one.namespace.name))
        decision = found.get("status", {}).get("decision", {})
        return decision if decision.get("phase") == phase and decision["reason"].startswith(reason) else None

    return await until(decided, f"{name} is {phase}: {reason}")


async def test_suspended_jobs_wait_for_a_doomed_node_and_then_resume_or_try(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Neither starts while the node could take its pods; then one has room on it, and the other tries until it has."""
    async with world(plane, tmp_path / "world", ServiceSettings(supervisor=_PATIENCE)) as one:
        [node] = await one.nodes("n0", gpus=2)
        await one.connected()
        one.notice([node], lead=60)
        await one.noticed([node])
        await _suspend(one, "small", 2, cpu="1")
        await _suspend(one, "large", 4)
        for name in ("small", "large"):
            await _decided(one, name, "Suspended", "Waiting: the job's pods could be scheduled")
        one.withdraw([node])
        await _decided(one, "small", "Resuming", "Resuming from the checkpoint as run 1 on 2 of 2 requested hosts")
        await _decided(one, "large", "Resuming", "Trying run 1 on 4 hosts without known room")
        await one.nodes("n1", gpus=4)
        await _decided(one, "large", "Running", "Run 1 is running on 4 hosts")
