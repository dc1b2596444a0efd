"""Keras 3 on the torch backend: four processes that average their gradients stop and resume exactly."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, curves
from tests.frameworks.frameworks_scenes import stop_at, suspend_past_a_killed_supervisor, tell_one_rank
from tests.frameworks.frameworks_world import FrameworksScript, example, run_alone, training

# A run imports for half a minute on a busy machine, and a test has three of them.
pytestmark = pytest.mark.timeout(900)

_EPOCHS = 4
_EPOCH_STEPS = 30
"""As in the example."""


def _script(home: Path, root: Path) -> FrameworksScript:
    return FrameworksScript(home, example("keras_fit.py"), (str(root / "checkpoints"), str(_EPOCHS)))


@pytest.fixture(scope="module")
def whole(frameworks: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, _script(frameworks, root)))


async def test_a_stop_in_mid_epoch_changes_no_loss(frameworks: Path, tmp_path: Path, whole: Curve) -> None:
    """All ranks stop at one step. Shuffling and dropout continue in the next run as they would have."""
    async with training(tmp_path, _script(frameworks, tmp_path)) as job:
        await job.suspend_and_resume(step=10)
        runs = await job.finish()
    assert len(runs) == 2
    assert_goes_on_exactly(whole, runs)


@pytest.mark.long
async def test_a_stop_in_a_validation_changes_no_loss(frameworks: Path, tmp_path: Path, whole: Curve) -> None:
    """All ranks save the state before the validation, and the next run repeats it."""
    script = replace(_script(frameworks, tmp_path), step_seconds=0.3)
    await stop_at(tmp_path, script, _EPOCH_STEPS + 3)
    (first,) = curves(tmp_path / "losses")
    assert {len(losses) for losses in first.values()} == {_EPOCH_STEPS}
    assert_goes_on_exactly(whole, [first, await run_alone(tmp_path / "second", script)])


@pytest.mark.long
async def test_a_supervisor_that_is_killed_in_mid_agreement_loses_no_step(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, _script(frameworks, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=10)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_rank_zero_saves_alone(
    frameworks: Path, tmp_path: Path, whole: Curve
) -> None:
    """No step is lost, and nothing hangs. The other ranks resume from rank 0's file, with new random numbers."""
    async with training(tmp_path, replace(_script(frameworks, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=10)
        first, second = await job.finish()
    assert len(first[0] + second[0]) == len(whole[0])
    assert first[0] == whole[0][: len(first[0])]


@pytest.mark.long
async def test_without_an_agreement_the_other_ranks_save_nothing(frameworks: Path, tmp_path: Path) -> None:
    """The control: rank 0 alone is told, and what the other ranks would need to go on exactly is lost."""
    # A report may be sent again.
    (step,) = set(await tell_one_rank(tmp_path, _script(frameworks, tmp_path), step=10))
    saved = [path.name for path in (tmp_path / "checkpoints").glob("*/*")]
    assert step >= 10
    assert saved == ["rank-0"]
