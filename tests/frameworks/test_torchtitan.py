"""TorchTitan: its checkpoint manager makes all ranks save together, at one agreed step, and resume exactly."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, numbers, steps_of
from tests.frameworks.frameworks_scenes import stop_at, suspend_past_a_killed_supervisor
from tests.frameworks.frameworks_scripts import torchtitan_llama, torchtitan_validating
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, faked, run_alone, training

pytestmark = pytest.mark.timeout(900)

_STEPS = 90
_EVERY = 20
"""The example saves unasked after so many steps."""
_BATCHES = 4
"""Of a step, over all ranks."""
_HANG_SECONDS = 20.0
"""A save of this job takes less than a second."""


def _script(home: Path, root: Path, *more: str) -> FrameworksScript:
    return torchtitan_llama(home, root, _STEPS, *more)


@pytest.fixture(scope="module")
def whole(torchtitan: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, _script(torchtitan, root)))


@pytest.mark.parametrize("more", [(), ("background",)], ids=["saving", "saving-in-background"])
async def test_all_ranks_stop_at_one_step_and_resume_exactly(
    torchtitan: Path, tmp_path: Path, whole: Curve, more: tuple[str, ...]
) -> None:
    async with training(tmp_path, _script(torchtitan, tmp_path, *more)) as job:
        await job.suspend_and_resume(step=10)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_a_stop_that_comes_in_a_validation_changes_no_loss(torchtitan: Path, tmp_path: Path) -> None:
    """It waits for the end of the validation, as no step ends before."""
    waiting, alone = tmp_path / "waiting", tmp_path / "whole"
    whole = await run_alone(alone, torchtitan_validating(torchtitan, alone, _STEPS))
    await stop_at(tmp_path, torchtitan_validating(torchtitan, tmp_path, _STEPS, str(waiting)), step=23, waiting=waiting)
    with faked(tmp_path, torchtitan_validating(torchtitan, tmp_path, _STEPS), run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert_goes_on_exactly(whole, second.curves())


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    torchtitan: Path, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, _script(torchtitan, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=10)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_nothing_hangs(torchtitan: Path, tmp_path: Path, whole: Curve) -> None:
    """Nobody saves alone. The job is suspended, and resumes from its last complete checkpoint."""
    async with training(tmp_path, replace(_script(torchtitan, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=_EVERY + 5, lead=20)
        _, second = await job.finish()
    again = _STEPS - steps_of(second)
    assert again in range(_EVERY, _STEPS, _EVERY)
    assert second == {rank: losses[again:] for rank, losses in whole.items()}


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
async def test_another_number_of_ranks_goes_on(
    torchtitan: Path, tmp_path: Path, whole: Curve, before: int, after: int
) -> None:
    """The global batch stays: two ranks accumulate two batches each. Sums in another order change the last bits.

    With another number of ranks, TorchTitan begins with other parameters.
    """
    script = replace(_script(torchtitan, tmp_path), processes=before)
    if before != _BATCHES:
        alone = tmp_path / "whole"
        whole = await run_alone(alone, replace(_script(torchtitan, alone), processes=before))
    await stop_at(tmp_path, script, step=30)
    with faked(tmp_path, replace(script, processes=after), run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        runs = second.curves()
    losses = [loss for run in runs for loss in _of_steps(run)]
    assert losses == pytest.approx(_of_steps(whole), rel=1e-3)


@pytest.mark.long
async def test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts(torchtitan: Path, tmp_path: Path) -> None:
    with faked(tmp_path, replace(_script(torchtitan, tmp_path), agrees=False)) as job:
        await job.until_step(5)
        job.supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        assert not job.supervisor.reports_of("saved")


def _of_steps(curve: Curve) -> list[float]:
    """The loss of each step, to which each rank adds its share, in one batch or several."""
    batches = _BATCHES // len(curve)
    ranks = [numbers(losses) for losses in curve.values()]
    return [sum(sum(losses[first : first + batches]) for losses in ranks) for first in range(0, len(ranks[0]), batches)]
