"""DeepSpeed with ZeRO: all ranks save together, between two updates of the parameters."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, steps_of
from tests.frameworks.frameworks_scenes import suspend_past_a_killed_supervisor
from tests.frameworks.frameworks_world import FrameworksScript, example, faked, run_alone, training

_STEPS = 400
_ACCUMULATED = 2
_HANG_SECONDS = 20.0
"""A save of this job takes about a second."""


def deepspeed(frameworks: Path, root: Path) -> FrameworksScript:
    arguments = (str(root / "checkpoints"), str(_STEPS))
    return FrameworksScript(frameworks, example("deepspeed_zero.py"), arguments, step_seconds=0.05)


@pytest.fixture(scope="module")
def whole(frameworks: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run: one for each micro-batch, of which a step accumulates two."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, deepspeed(frameworks, root)))


async def test_all_ranks_stop_between_two_updates_and_resume_exactly(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    """Never between two micro-batches, whose gradients no checkpoint holds."""
    async with training(tmp_path, deepspeed(frameworks, tmp_path)) as job:
        await job.suspend_and_resume(step=20)
        first, second = await job.finish()
    assert steps_of(first) % _ACCUMULATED == 0
    assert_goes_on_exactly(whole, [first, second])


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, deepspeed(frameworks, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_nothing_hangs(frameworks: Path, tmp_path: Path, whole: Curve) -> None:
    """A save needs all ranks, so nobody saves: the job is suspended in time, and its next run starts anew."""
    async with training(tmp_path, replace(deepspeed(frameworks, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=20, lead=20)
        _, second = await job.finish()
    assert_goes_on_exactly(whole, [second])


@pytest.mark.long
async def test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts(frameworks: Path, tmp_path: Path) -> None:
    """The collectives of its save meet those of the others' next step. `latest` names nothing incomplete."""
    with faked(tmp_path, replace(deepspeed(frameworks, tmp_path), agrees=False)) as job:
        await job.until_step(10)
        job.supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        assert not job.supervisor.reports_of("saved")
    assert not (tmp_path / "checkpoints" / "latest").exists()
