"""The jobs that the tests of all frameworks run: scripts without the agreement still stop and resume."""

from dataclasses import replace
from pathlib import Path

from tests.frameworks.frameworks_losses import assert_goes_on_exactly
from tests.frameworks.frameworks_world import FrameworksScript, run_alone, training

_SCRIPT = Path(__file__).with_name("frameworks_rank_zero.py")
_STEPS = 120


async def test_a_script_whose_rank_zero_saves_alone_loses_no_step(frameworks: Path, tmp_path: Path) -> None:
    """DDP needs no other rank for a save; the others hang in the next step until the job is suspended."""
    script = FrameworksScript(frameworks, _SCRIPT, (str(tmp_path / "checkpoint"), str(_STEPS)))
    whole = await run_alone(tmp_path / "alone", replace(script, arguments=(str(tmp_path / "none"), str(_STEPS))))
    async with training(tmp_path, script) as job:
        await job.suspend_and_resume(step=20)
        first, second = await job.finish()
    # The others have begun one step more, which was never finished.
    assert_goes_on_exactly({0: whole[0]}, [first, second])
