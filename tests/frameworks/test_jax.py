"""JAX with Orbax: processes that gloo connects stop at one agreed step, save together and resume exactly."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.cloud.process import TooLate
from tests.frameworks.frameworks_losses import Curve, assert_goes_on_exactly, curves, numbers
from tests.frameworks.frameworks_one_by_one import (
    OneByOneScript,
    assert_resumes_from_a_checkpoint,
    jax_orbax,
    names_of_checkpoints,
    saved_unasked_and_stopped,
    spoil_checkpoints,
)
from tests.frameworks.frameworks_scenes import suspend_past_a_killed_supervisor, tell_one_rank
from tests.frameworks.frameworks_world import faked, run_alone, training
from tests.testkit.waiting import until

pytestmark = pytest.mark.timeout(600)

_STEPS = 600
_EVERY = 50
"""The example saves in the background after so many steps."""
_HANG_SECONDS = 20.0
"""A save of this job takes less than a second."""


@pytest.fixture
def script(jax: Path, tmp_path: Path) -> OneByOneScript:
    return jax_orbax(jax, tmp_path, _STEPS)


@pytest.fixture(scope="module")
def whole(jax: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The losses of an uninterrupted run."""
    root = tmp_path_factory.mktemp("whole")
    return asyncio.run(run_alone(root, jax_orbax(jax, root, _STEPS)))


@pytest.mark.brief
async def test_a_stop_at_one_step_changes_no_loss(script: OneByOneScript, tmp_path: Path, whole: Curve) -> None:
    """Each process reports the save in the background by its own step, then that of the agreed step."""
    step = await saved_unasked_and_stopped(tmp_path, script, _EVERY)
    (first,) = curves(tmp_path / "losses")
    assert {len(losses) for losses in first.values()} == {step}
    assert_goes_on_exactly(whole, [first, await run_alone(tmp_path / "second", script)])


@pytest.mark.long
async def test_a_supervisor_killed_in_mid_agreement_loses_no_step(
    script: OneByOneScript, tmp_path: Path, whole: Curve
) -> None:
    async with training(tmp_path, script) as job:
        await suspend_past_a_killed_supervisor(job, step=20)
        assert_goes_on_exactly(whole, await job.finish())


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 4])
async def test_another_number_of_processes_goes_on(
    script: OneByOneScript, tmp_path: Path, whole: Curve, processes: int
) -> None:
    """No step is lost or repeated; sums in another order change the last bits of a loss."""
    step = await saved_unasked_and_stopped(tmp_path, script, _EVERY)
    second = await run_alone(tmp_path / "second", replace(script, processes=processes))
    assert set(second) == set(range(processes))
    for losses in second.values():
        assert numbers(losses) == pytest.approx(numbers(whole[0][step:]), rel=1e-3)


@pytest.mark.long
async def test_a_save_that_fails_is_not_reported_as_saved(script: OneByOneScript, tmp_path: Path) -> None:
    """The directory of checkpoints becomes a file. Orbax then waits in a barrier, and nothing is reported as saved."""
    with faked(tmp_path, script) as job:
        await job.until_step(5)
        spoil_checkpoints(script)
        await asyncio.to_thread(job.agree_on, lambda step: step > 0)
        await until(lambda: "NotADirectoryError" in job.child.log.read_text(), job.child.tail, seconds=60)
        with suppress(TooLate):
            assert await job.child.wait(_HANG_SECONDS) != 0
        assert not job.supervisor.reports_of("saved")


@pytest.mark.long
async def test_with_a_process_that_cannot_agree_nothing_hangs(
    script: OneByOneScript, tmp_path: Path, whole: Curve
) -> None:
    """Nobody saves alone. The job is suspended, and resumes from its last checkpoint."""
    await assert_resumes_from_a_checkpoint(tmp_path, replace(script, cut_off=1), _EVERY, whole)


@pytest.mark.long
async def test_without_an_agreement_nothing_is_saved(script: OneByOneScript, tmp_path: Path) -> None:
    """The control: rank 0 alone is told, and waits in Orbax for the other process."""
    assert await tell_one_rank(tmp_path, script, step=10) == []
    assert not [name for name in names_of_checkpoints(script) if name.isdigit()]
