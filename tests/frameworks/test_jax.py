"""JAX with Orbax: processes that gloo connects stop at one agreed step, save together and resume exactly."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, numbers, steps_of
from tests.frameworks.frameworks_processes import JaxJob
from tests.testkit.waiting import until

pytestmark = pytest.mark.timeout(600)

_STEPS = 600
_EVERY = 50
"""The example saves in the background after so many steps."""
_HANG_SECONDS = 20.0
"""A save of this job takes less than a second."""


@pytest.fixture(scope="module")
def whole(jax: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    return asyncio.run(JaxJob(jax, tmp_path_factory.mktemp("whole")).run_alone(_STEPS))


@pytest.mark.brief
async def test_a_stop_at_one_step_changes_no_loss(jax: Path, tmp_path: Path, whole: Curve) -> None:
    """Each process reports the save in the background by its own step, then that of the agreed step."""
    job = JaxJob(jax, tmp_path)
    first, step = await job.stop_after_a_save(_STEPS, _EVERY)
    assert {len(losses) for losses in first.values()} == {step}
    assert_goes_on_exactly(whole, [first, await job.run_alone(_STEPS)])


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 4])
async def test_another_number_of_processes_goes_on(jax: Path, tmp_path: Path, whole: Curve, processes: int) -> None:
    """No step is lost or repeated; sums in another order change the last bits of a loss."""
    job = JaxJob(jax, tmp_path)
    _, step = await job.stop_after_a_save(_STEPS, _EVERY)
    second = await job.run_alone(_STEPS, processes)
    assert set(second) == set(range(processes))
    for losses in second.values():
        assert numbers(losses) == pytest.approx(numbers(whole[0][step:]), rel=1e-3)


@pytest.mark.long
async def test_a_save_that_fails_is_not_reported_as_saved(jax: Path, tmp_path: Path) -> None:
    """The directory of checkpoints becomes a file. Orbax then waits in a barrier, and nothing is reported as saved."""
    job = JaxJob(jax, tmp_path)
    with job.supervised(_STEPS) as supervisor:
        await job.until_step(5)
        shutil.rmtree(job.checkpoints)
        job.checkpoints.touch()
        await asyncio.to_thread(supervisor.agree, 2, ahead=6)
        await until(lambda: "NotADirectoryError" in job.children[0].tail(), job.tail, seconds=60)
        with suppress(TooLate):
            assert 0 not in await job.codes(_HANG_SECONDS)
        assert not supervisor.reports_of("saved")


@pytest.mark.long
async def test_with_a_process_that_cannot_agree_nothing_hangs(jax: Path, tmp_path: Path, whole: Curve) -> None:
    """Nobody saves alone: the processes go on until they are killed, and resume from their last checkpoint."""
    job = JaxJob(jax, tmp_path)
    await job.end_without_agreement(_STEPS, after=_EVERY + 2)
    second = await job.run_alone(_STEPS)
    assert second == {rank: losses[_EVERY:] for rank, losses in whole.items()}


@pytest.mark.long
async def test_without_an_agreement_nothing_is_saved(jax: Path, tmp_path: Path) -> None:
    """The control: rank 0 alone is told, and waits in Orbax for the other process."""
    job = JaxJob(jax, tmp_path, agrees=False)
    with job.supervised(_STEPS) as supervisor:
        await job.until_step(10)
        supervisor.direct(0, directive="STOP")
        with suppress(TooLate):
            assert 0 not in await job.codes(_HANG_SECONDS)
        assert not supervisor.reports_of("saved")
    assert steps_of(job.curve()) < _EVERY
    assert not [path for path in job.checkpoints.glob("*") if path.name.isdigit()]
