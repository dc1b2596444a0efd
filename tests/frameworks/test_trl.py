"""TRL's SFTTrainer with the SDK: ranks stop at one step, and the next run goes on with it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, steps_of, steps_trained_again
from tests.frameworks.frameworks_scenes import stop_at, suspend_past_a_killed_supervisor
from tests.frameworks.frameworks_scripts import trl_sft
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, faked, run_alone, training

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

_STEPS = 40
_STOP = 19
"""In the second epoch of two ranks, and between two saves of the Trainer's own."""
_SAVED_EVERY = 10


def _script(trl: Path, root: Path, *more: str) -> FrameworksScript:
    return trl_sft(trl, root, _STEPS, *more)


@pytest.fixture(scope="module")
def whole(trl: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an undisturbed run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, _script(trl, root)))


async def test_a_stop_loses_no_step_and_changes_no_bit(trl: Path, whole: Curve, tmp_path: Path) -> None:
    """Dropout included."""
    script = _script(trl, tmp_path)
    await stop_at(tmp_path, script, _STOP)
    with faked(tmp_path, script, run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert_goes_on_exactly(whole, second.curves())


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
async def test_the_next_run_has_another_number_of_ranks(trl: Path, tmp_path: Path, before: int, after: int) -> None:
    """It begins with the step of the checkpoint."""
    script = replace(_script(trl, tmp_path), processes=before)
    await stop_at(tmp_path, script, _STOP)
    with faked(tmp_path, replace(script, processes=after), run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert [report["step"] for report in second.supervisor.reports_of("resumed")] == [_STOP] * after
        assert steps_of(second.curves()[-1]) == _STEPS - _STOP


async def test_a_stop_in_an_evaluation_changes_no_bit(trl: Path, tmp_path: Path) -> None:
    """The state after the last training step is saved; batches count as steps, four of training and four others."""
    alone = tmp_path / "whole"
    whole = await run_alone(alone, _script(trl, alone, "evaluating"))
    script = _script(trl, tmp_path, "evaluating")
    await stop_at(tmp_path, script, 22)
    assert (tmp_path / "checkpoints" / "checkpoint-15").is_dir()
    with faked(tmp_path, script, run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert_goes_on_exactly(whole, second.curves())


async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(trl: Path, whole: Curve, tmp_path: Path) -> None:
    async with training(tmp_path, _script(trl, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=7)
        assert_goes_on_exactly(whole, await job.finish())


async def test_with_a_rank_that_cannot_agree_nothing_hangs(trl: Path, whole: Curve, tmp_path: Path) -> None:
    """Nobody saves, because a save needs all ranks; the job resumes from the last checkpoint of the Trainer."""
    async with training(tmp_path, replace(_script(trl, tmp_path), cut_off=1, step_seconds=1.0)) as job:
        await job.suspend_and_resume(step=_SAVED_EVERY + 2, lead=10)
        first, second = await job.finish()
    assert 0 < steps_trained_again(whole, first, second) < steps_of(first)


async def test_without_an_agreement_steps_are_lost(trl: Path, whole: Curve, tmp_path: Path) -> None:
    """The control: rank 0 alone is told, waits in its save for the other one, and leaves no complete checkpoint."""
    async with training(tmp_path, replace(_script(trl, tmp_path), agrees=False, step_seconds=0.2)) as job:
        await job.suspend_and_resume(step=_SAVED_EVERY + 2, lead=15)
        first, second = await job.finish()
    assert steps_trained_again(whole, first, second) > 0
