"""DDP, where rank 0 alone writes checkpoints: all ranks stop at one agreed step, or rank 0 is stopped alone."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly
from tests.frameworks.frameworks_scenes import suspend_past_a_killed_supervisor
from tests.frameworks.frameworks_world import FrameworksScript, example, faked, run_alone, training

_STEPS = 600
_HANG_SECONDS = 20.0
"""A save of this job takes less than a second."""


def ddp(frameworks: Path, root: Path) -> FrameworksScript:
    return FrameworksScript(frameworks, example("ddp.py"), (str(root / "checkpoint"), str(_STEPS)))


@pytest.fixture(scope="module")
def whole(frameworks: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, ddp(frameworks, root)))


async def test_all_ranks_stop_at_one_step_and_resume_exactly(frameworks: Path, tmp_path: Path, whole: Curve) -> None:
    async with training(tmp_path, ddp(frameworks, tmp_path)) as job:
        await job.suspend_and_resume(step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, ddp(frameworks, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_rank_zero_saves_alone(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    """The others have begun one step more, which was never finished."""
    async with training(tmp_path, replace(ddp(frameworks, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=20)
        assert_goes_on_exactly({0: whole[0]}, await job.finish())


@pytest.mark.long
async def test_without_an_agreement_ranks_told_one_by_one_save_nothing(frameworks: Path, tmp_path: Path) -> None:
    """The first rank to be told ends the training of all, before rank 0 comes to the next end of a step."""
    with faked(tmp_path, replace(ddp(frameworks, tmp_path), agrees=False)) as job:
        await job.until_step(5)
        job.supervisor.direct(3, directive="STOP")
        saved = job.supervisor.wait_for(lambda: job.supervisor.reports_of("saved"))
        await job.until_begun(0, saved[0]["step"] + 1)  # it has asked after that step, and waits for rank 3
        job.supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        assert {report["rank"] for report in job.supervisor.reports_of("saved")} == {3}
    assert not (tmp_path / "checkpoint").exists()
