"""Accelerate: four processes stop at one step, in the midst of an epoch, and the next run goes on exactly."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, curves
from tests.frameworks.frameworks_scenes import stop_at, suspend_past_a_killed_supervisor, tell_one_rank
from tests.frameworks.frameworks_world import FrameworksScript, example, run_alone, training

# A run imports for half a minute on a busy machine, and a test has three of them.
pytestmark = pytest.mark.timeout(900)

_STEPS = 160
_EPOCH_STEPS = 8


def accelerate(frameworks: Path, root: Path) -> FrameworksScript:
    arguments = (str(root / "checkpoints"), str(_STEPS))
    return FrameworksScript(frameworks, example("accelerate_loop.py"), arguments, step_seconds=0.2)


@pytest.fixture(scope="module")
def whole(frameworks: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, accelerate(frameworks, root)))


async def test_a_stop_loses_no_step_and_changes_no_bit(frameworks: Path, tmp_path: Path, whole: Curve) -> None:
    """With dropout, in shuffled epochs that are the same in every run."""
    async with training(tmp_path, accelerate(frameworks, tmp_path)) as job:
        await job.suspend_and_resume(step=12)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
@pytest.mark.parametrize("after", [-1, 0, 1])
async def test_a_stop_near_the_end_of_an_epoch_changes_no_bit(
    frameworks: Path, tmp_path: Path, whole: Curve, after: int
) -> None:
    """One batch before it, at it, and one batch after it."""
    script = accelerate(frameworks, tmp_path)
    await stop_at(tmp_path, script, 2 * _EPOCH_STEPS + after)
    (first,) = curves(tmp_path / "losses")
    assert_goes_on_exactly(whole, [first, await run_alone(tmp_path / "second", script)])


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, accelerate(frameworks, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=12)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_nothing_hangs(frameworks: Path, tmp_path: Path, whole: Curve) -> None:
    """A save needs all ranks, so nobody saves: the job is suspended in time, and its next run starts anew."""
    async with training(tmp_path, replace(accelerate(frameworks, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=12, lead=20)
        _, second = await job.finish()
    assert_goes_on_exactly(whole, [second])


@pytest.mark.long
async def test_without_an_agreement_nothing_is_saved(frameworks: Path, tmp_path: Path) -> None:
    """The control: rank 0 alone is told, and waits in its save for ranks that wait for it in the next step."""
    assert await tell_one_rank(tmp_path, accelerate(frameworks, tmp_path), step=10) == []
    assert not list((tmp_path / "checkpoints").glob("step-*"))
