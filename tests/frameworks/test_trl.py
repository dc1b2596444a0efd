"""TRL's SFTTrainer with the callback of the SDK: ranks stop at one step, and the next run goes on with it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_losses import assert_goes_on_exactly, steps_of
from tests.frameworks.frameworks_scenes import stop_at
from tests.frameworks.frameworks_scripts import trl_sft
from tests.frameworks.frameworks_world import RUN_SECONDS, FrameworksScript, faked, run_alone

pytestmark = pytest.mark.timeout(900)

_STEPS = 40
_STOP = 19
"""In the second epoch of two ranks, and between two saves of the Trainer's own."""


def _script(trl: Path, root: Path, processes: int = 2) -> FrameworksScript:
    return trl_sft(trl, root, _STEPS, processes)


@pytest.mark.long
async def test_a_stop_loses_no_step_and_changes_no_bit(trl: Path, tmp_path: Path) -> None:
    """Dropout included."""
    whole = await run_alone(tmp_path / "whole", _script(trl, tmp_path / "whole"))
    script = _script(trl, tmp_path)
    await stop_at(tmp_path, script, _STOP)
    with faked(tmp_path, script, run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert_goes_on_exactly(whole, second.curves())


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
async def test_the_next_run_has_another_number_of_ranks(trl: Path, tmp_path: Path, before: int, after: int) -> None:
    """It begins with the step of the checkpoint."""
    script = _script(trl, tmp_path, before)
    await stop_at(tmp_path, script, _STOP)
    with faked(tmp_path, replace(script, processes=after), run=2) as second:
        assert await second.child.wait(RUN_SECONDS) == 0, second.child.tail()
        assert [report["step"] for report in second.supervisor.reports_of("resumed")] == [_STOP] * after
        assert steps_of(second.curves()[-1]) == _STEPS - _STOP
