"""Megatron-core with tensor parallelism: all ranks save with its `dist_checkpointing` at one agreed step."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, numbers, steps_of
from tests.frameworks.frameworks_scenes import stop_at, suspend_past_a_killed_supervisor
from tests.frameworks.frameworks_scripts import megatron_gpt
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, faked, run_alone, training

pytestmark = pytest.mark.timeout(900)

_STEPS = 150
_EVERY = 50
"""The example saves unasked after so many steps."""
_BATCHES = {2: 4, 4: 2}
"""Of a step, by the number of ranks in all. Two of them share each batch."""
_COMPARED = 20
"""Losses at the beginning of a run whose mean is compared, as a single one varies."""
_HANG_SECONDS = 20.0
"""A save of this job takes two seconds."""


def _script(home: Path, root: Path) -> FrameworksScript:
    return replace(megatron_gpt(home, root, _STEPS), step_seconds=0.05)


@pytest.fixture(scope="module")
def whole(megatron: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run, one for each batch."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, _script(megatron, root)))


async def test_all_ranks_stop_at_one_step_and_resume_exactly(megatron: Path, tmp_path: Path, whole: Curve) -> None:
    """Dropout included, because each rank's random number generators continue as well."""
    async with training(tmp_path, _script(megatron, tmp_path)) as job:
        await job.suspend_and_resume(step=20)
        first, second = await job.finish()
    assert steps_of(first) % _BATCHES[4] == 0
    assert_goes_on_exactly(whole, [first, second])


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(megatron: Path, tmp_path: Path, whole: Curve) -> None:
    async with training(tmp_path, _script(megatron, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_nothing_hangs(megatron: Path, tmp_path: Path, whole: Curve) -> None:
    """Nobody saves alone. The job is suspended, and resumes from its last complete checkpoint."""
    async with training(tmp_path, replace(_script(megatron, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=_BATCHES[4] * (_EVERY + 5), lead=20)
        _, second = await job.finish()
    again = steps_of(whole) - steps_of(second)
    assert again in range(_BATCHES[4] * _EVERY, steps_of(whole), _BATCHES[4] * _EVERY)
    assert second == {rank: losses[again:] for rank, losses in whole.items()}


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
async def test_another_number_of_ranks_goes_on(megatron: Path, tmp_path: Path, before: int, after: int) -> None:
    """With the step, the model and the optimizer of the checkpoint, and the rest of the data."""
    script = replace(_script(megatron, tmp_path), processes=before, step_seconds=0.02)
    await stop_at(tmp_path, script, step=100)
    with faked(tmp_path, replace(script, processes=after), run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        resumed = [report["step"] for report in second.supervisor.reports_of("resumed")]
        first_losses, second_losses = second.curves()
    assert resumed == [100] * after
    assert steps_of(second_losses) == (_STEPS - 100) * _BATCHES[after]
    assert _of_a_step(second_losses) < _of_a_step(first_losses) / 2


@pytest.mark.long
async def test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts(megatron: Path, tmp_path: Path) -> None:
    with faked(tmp_path, replace(_script(megatron, tmp_path), agrees=False)) as job:
        await job.until_step(10)
        job.supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        assert not job.supervisor.reports_of("saved")


def _of_a_step(curve: Curve) -> float:
    """The mean loss of the first steps. Each batch has its share of its step's loss."""
    return _BATCHES[len(curve)] * fmean(loss for losses in curve.values() for loss in numbers(losses[:_COMPARED]))
