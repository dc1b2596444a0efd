"""FSDP2 with torch.distributed.checkpoint: a save needs all ranks, so they stop at one agreed step or not at all."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, steps_of
from tests.frameworks.frameworks_scenes import suspend_past_a_killed_supervisor
from tests.frameworks.frameworks_world import FrameworksScript, example, faked, run_alone, training

_STEPS = 600
_EVERY = 50
"""The example saves unasked after so many steps."""
_HANG_SECONDS = 20.0
"""A save of this job takes less than a second."""


def fsdp(fsdp2: Path, root: Path) -> FrameworksScript:
    return FrameworksScript(fsdp2, example("fsdp.py"), (str(root / "checkpoints"), str(_STEPS)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an uninterrupted run, with what interrupted saves of an earlier one have left."""
    root = tmp_path_factory.mktemp("whole")
    for name in (".incomplete-30", f"step-{_EVERY:012d}"):
        (root / "checkpoints" / name).mkdir(parents=True)
        (root / "checkpoints" / name / "__0_0.distcp").touch()
    return root


@pytest.fixture(scope="module")
def whole(fsdp2: Path, root: Path) -> Curve:
    """The losses of the uninterrupted run."""
    return asyncio.run(run_alone(root, fsdp(fsdp2, root)))


@pytest.mark.brief
def test_an_incomplete_checkpoint_is_ignored_and_removed(whole: Curve, root: Path) -> None:
    """The run starts from step 0, and its last two checkpoints are all that remains."""
    assert steps_of(whole) == _STEPS
    remaining = {path.name for path in (root / "checkpoints").iterdir()}
    assert remaining == {f"step-{step:012d}" for step in (_STEPS - _EVERY, _STEPS)}


@pytest.mark.brief
async def test_all_ranks_stop_at_one_step_and_resume_exactly(fsdp2: Path, tmp_path: Path, whole: Curve) -> None:
    """Dropout included, because each rank's random number generators continue as well."""
    async with training(tmp_path, fsdp(fsdp2, tmp_path)) as job:
        await job.suspend_and_resume(step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(fsdp2: Path, tmp_path: Path, whole: Curve) -> None:
    async with training(tmp_path, fsdp(fsdp2, tmp_path)) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
async def test_with_a_rank_that_cannot_agree_nothing_hangs(fsdp2: Path, tmp_path: Path, whole: Curve) -> None:
    """Nobody saves alone. The job is suspended, and resumes from its last complete checkpoint."""
    async with training(tmp_path, replace(fsdp(fsdp2, tmp_path), cut_off=2)) as job:
        await job.suspend_and_resume(step=_EVERY + 5)
        _, second = await job.finish()
    first = {len(losses) - len(second[rank]) for rank, losses in whole.items()}
    assert len(first) == 1
    assert first <= set(range(_EVERY, _STEPS, _EVERY))
    assert {rank: losses[-len(second[rank]) :] for rank, losses in whole.items()} == second


@pytest.mark.long
async def test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts(fsdp2: Path, tmp_path: Path) -> None:
    """The collectives of its save meet those of the others' next step."""
    with faked(tmp_path, replace(fsdp(fsdp2, tmp_path), agrees=False)) as job:
        await job.until_step(5)
        job.supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        assert not job.supervisor.reports_of("saved")
    assert not list((tmp_path / "checkpoints").glob("step-*"))
