"""Stops all ranks of a job at a step that a test chooses, or rank 0 alone, or while their supervisor is killed."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_world import RUN_SECONDS, FakedTraining, FrameworksScript, FrameworksTraining, faked
from tests.testkit.waiting import until

_HANG_SECONDS = 20.0
"""A save of these jobs takes less than a second."""


async def stop_at(root: Path, script: FrameworksScript, step: int, *, waiting: Path | None = None) -> None:
    """Start the job, stop it at this step, and wait until all of its ranks have saved and exited.

    If `waiting` is given, the stop is told once the job has made that file, and waits until it is removed.

    The step has to be some way beyond the first one: until a rank has asked once, a stop is not one at an agreed step.
    Steps are what the integration counts, with batches of evaluations.
    """
    with faked(root, script) as job:
        await job.until_step(2)
        if waiting is not None:
            await until(waiting.exists, job.child.tail, seconds=RUN_SECONDS)
        job.supervisor.commit(1, step)
        if waiting is not None:
            await asyncio.to_thread(waiting.unlink)
        await until(lambda: not job.child.running or _all_saved(job, step), job.child.tail, seconds=RUN_SECONDS)
        assert await job.end(RUN_SECONDS) != 0
        assert _all_saved(job, step), job.child.tail()


async def suspend_past_a_killed_supervisor(job: FrameworksTraining, step: int) -> None:
    """Announce a reclaim at a step, and kill the supervisor and start it again while the ranks agree on a later one.

    A rank stands still, so that the agreement is not carried out before the supervisor is killed. The job is suspended
    and gets its host back.
    """
    await job.until_step(step)
    job.stall(job.processes - 1)
    await job.notice(lead=90)
    await job.until_agreeing()
    await job.world.supervisor.kill()
    job.go_on()
    await job.world.supervisor.start()
    await job.until_suspended()
    await job.give_back()


async def tell_one_rank(root: Path, script: FrameworksScript, step: int) -> list[int]:
    """Tell rank 0 alone to stop once training has reached this step; returns the steps that it has reported as saved.

    Nobody waits for a job that hangs longer than a save takes.
    """
    # The fake supervisor releases nobody here.
    alone = replace(script, agrees=False, variables={**script.variables, "KUBEAI_EXIT_HOLD": "0"})
    with faked(root, alone) as job:
        await job.until_step(step)
        job.supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        return [report["step"] for report in job.supervisor.reports_of("saved")]


def _all_saved(job: FakedTraining, step: int) -> bool:
    """Whether the last checkpoint of each rank is that of this step."""
    last_saved = {report["rank"]: report["step"] for report in job.supervisor.reports_of("saved")}
    return last_saved == dict.fromkeys(range(job.processes), step)
