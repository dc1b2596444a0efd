"""kubeai.torch: at a stop for which a checkpoint would be too slow, hosts that stay keep the state in memory."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.frameworks.frameworks_keepers import state_keeper
from tests.frameworks.frameworks_losses import assert_goes_on_exactly
from tests.frameworks.frameworks_resuming import assert_equal_to_a_checkpoint_of, rounds_of, start_anew
from tests.frameworks.frameworks_stops import AHEAD, MEGABYTE, StoppingJob, stopping_job
from tests.frameworks.frameworks_world import FrameworksScript, run_alone, training
from tests.testkit.waiting import wait_until

pytestmark = pytest.mark.timeout(600)
_STOP = 14
_SAVED = 9
"""The step of a checkpoint after which no further one comes before the stop."""
_SCRIPT = Path(__file__).with_name("frameworks_stopping.py")


def _resume(job: StoppingJob, *names: str) -> int:
    """Train to the end on these hosts; returns the step that the first one goes on from."""
    job.supervisor.direct()
    return start_anew(job.rounds, *names)[0]


@contextlib.contextmanager
def _job(home: Path, root: Path, kind: str = "stops", size: int = 64 * MEGABYTE) -> Iterator[StoppingJob]:
    """Start four hosts, and let them train until the step before which no stop comes."""
    with stopping_job(root, rounds_of(home, root, kind), "abcd", size) as job:
        job.rounds.start("a", "b", "c", "d")
        job.rounds.until_step(_STOP - AHEAD)
        yield job


@pytest.mark.long
@pytest.mark.parametrize("names", ["acd", "abcd"], ids=["on the hosts that stayed", "on as many hosts as before"])
def test_a_job_resumes_from_the_memory_of_hosts_that_stay_and_equals_a_checkpoint_in_every_bit(
    fsdp2: Path, tmp_path: Path, names: str
) -> None:
    """No checkpoint is written. The host that leaves takes nothing along."""
    with _job(fsdp2, tmp_path) as job:
        step = job.stop("b", seconds_left=20.0)
        assert job.answers(step) == ["kept"] * 4
        assert (job.saved_steps(), bool(job.note())) == ([], True)
        assert [bool(size) for size in job.kept_bytes()] == [True, False, True, True]
        assert _resume(job, *names) == step
        assert f"going on after step {step}, from the memory of hosts" in job.rounds.output("a")
        assert_equal_to_a_checkpoint_of(step, job.rounds, fsdp2, tmp_path, *names)


@pytest.mark.long
@pytest.mark.parametrize("seconds_left", [60.0, None], ids=["time enough", "no deadline"])
def test_a_checkpoint_comes_first_where_there_is_time_for_it(
    fsdp2: Path, tmp_path: Path, seconds_left: float | None
) -> None:
    with _job(fsdp2, tmp_path, f"stops-{_SAVED}") as job:
        step = job.stop("b", seconds_left=seconds_left)
        assert job.answers(step) == ["saved"] * 4
        assert (job.saved_steps()[-1], bool(job.note())) == (step, False)
        assert job.kept_bytes() == [0] * 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "leaving", "reason", "short"),
    [
        (MEGABYTE // 4, "b", "a state keeper has no room for parts of", "acd"),
        (0, "b", "fewer than half of the ranks are on hosts that stay and have a keeper", "acd"),
        (64 * MEGABYTE, "bcd", "fewer than half of the ranks are on hosts that stay and have a keeper", ""),
    ],
    ids=["no room", "no room at all", "most hosts leave"],
)
def test_a_state_that_no_memory_takes_is_saved(  # noqa: PLR0913 - what differs, and what follows
    fsdp2: Path, tmp_path: Path, *, size: int, leaving: str, reason: str, short: str
) -> None:
    """However long the checkpoint takes. Keepers that are too small say so to their operators."""
    with _job(fsdp2, tmp_path, size=size) as job:
        step = job.stop(*leaving, seconds_left=20.0)
        assert job.answers(step) == ["saved"] * 4
        assert (job.saved_steps(), bool(job.note())) == ([step], False)
        assert reason in job.rounds.output("a")
        assert {name for name, keeper in job.keepers.items() if "no_room" in keeper.refusals()} == set(short)
        assert job.kept_bytes() == [0] * 4


@pytest.mark.long
@pytest.mark.parametrize("damage", ["lost", "another"])
def test_a_state_of_which_a_part_is_gone_is_not_used(fsdp2: Path, tmp_path: Path, damage: str) -> None:
    """The job goes back to its newest checkpoint, and says why. The next one lets the keepers forget the state."""
    with _job(fsdp2, tmp_path, f"stops-{_SAVED}") as job:
        step = job.stop("b", seconds_left=3.9)
        assert job.answers(step) == ["kept"] * 4
        assert (job.saved_steps(), bool(job.note())) == ([_SAVED], True)
        if damage == "lost":
            job.keepers["c"].end()
        else:
            job.keepers["c"].damage()
        assert _resume(job, "a", "c", "d") == _SAVED
        outputs = "".join(job.rounds.output(name) for name in "acd")
        assert f"the state after step {step} was kept in memory, and part 1 of it cannot be had" in outputs
        assert job.note() is None
        wait_until(lambda: not any(job.kept_bytes("abd")))


@pytest.mark.brief
async def test_a_supervisor_stops_and_resumes_a_job_without_a_checkpoint(fsdp2: Path, tmp_path: Path) -> None:
    """It says that there is none. The ranks of the host that leaves give their parts to the others."""
    script = FrameworksScript(fsdp2, _SCRIPT, (str(tmp_path / "whole"), "200"))
    whole = await run_alone(tmp_path / "alone", script)
    with state_keeper(tmp_path / "keeper", 64 * MEGABYTE) as keeper:
        variables = {"KUBEAI_KEEPER": keeper.address}
        disturbed = replace(script, arguments=(str(tmp_path / "checkpoints"), "200"), variables=variables)
        async with training(tmp_path, disturbed) as job:
            await job.until_step(20)
            await job.notice()
            suspended = await job.until_suspended()
            assert "All ranks have left the state of step" in suspended.reason
            assert "no checkpoint of it is saved" in suspended.reason
            assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["kept.json"]
            await job.give_back()
            assert_goes_on_exactly(whole, await job.finish())
