"""The launcher with the demo job, as real processes: what changes of hosts do to the training."""

import os
import signal
from pathlib import Path

import pytest

from simulator.elastic.settings import parse_hosts
from simulator.events import JobEventKind
from simulator.model import reference
from tests.simulator.elastic.training_jobs import DEADLINE, Folder, is_alive
from tests.testkit.waiting import wait_until

REJOINED = 60
"""Steps of slow workers, who are not done before another has joined, also where starting a process takes seconds."""
SLOW = ("--step-seconds", "0.05")


def test_one_process_alone_trains_to_the_reference(folder: Folder) -> None:
    """Without a launcher the script is a job of one worker, and its result is the reference."""
    assert folder.run_alone("--steps", "20", "--step-seconds", "0") == 0
    (end,) = folder.events(JobEventKind.JOB_FINISHED)
    assert end.text("digest") == reference(20)


def test_four_workers_train_to_the_reference(folder: Folder) -> None:
    """Four workers end with the bits that one would have, and every rank applies every step."""
    folder.list_hosts("abcd")
    assert folder.launch(steps=20).wait(DEADLINE) == 0
    verdict = folder.verdict(20)
    assert verdict.ok, verdict.failures
    assert len(folder.events(JobEventKind.STEP_APPLIED)) == 4 * 20
    assert len(folder.events(JobEventKind.JOB_FINISHED)) == 4


def test_shrink_and_grow_lose_nothing(folder: Folder) -> None:
    """Hosts leave and join at step boundaries; survivors keep their processes, and the result its bits."""
    folder.list_hosts("abcd")
    launcher = folder.launch(steps=REJOINED, options=SLOW)
    folder.until_step(5)
    survivors = folder.pids("acd")
    folder.list_hosts("acd")
    folder.until_ring("acd", step=3)
    folder.list_hosts("acde")
    folder.until_ring("acde", step=3)
    assert folder.pids("acd") == survivors
    wait_until(lambda: not folder.pids("b")["b"], "the removed worker to end itself")
    assert launcher.wait(DEADLINE) == 0
    verdict = folder.verdict(REJOINED)
    assert verdict.ok, verdict.failures
    assert folder.rings() == ["abcd", "acd", "acde"]
    assert verdict.figures.hosts_blacklisted == 0


@pytest.mark.parametrize(
    "turns",
    [pytest.param(("abc", "bc", "bca"), id="a removed host"), pytest.param(("bcd", "bcda", "cda"), id="the oldest")],
)
def test_hosts_leave_and_join_by_age(folder: Folder, turns: tuple[str, str, str]) -> None:
    """A host that was removed in order is welcome again, as the youngest; the oldest that stays becomes rank 0."""
    folder.list_hosts(turns[0])
    launcher = folder.launch(steps=REJOINED, options=SLOW)
    folder.until_step(3)
    folder.list_hosts(turns[1])
    folder.until_ring(turns[1], step=2)
    folder.list_hosts(turns[2])
    folder.until_ring(turns[2])
    assert launcher.wait(DEADLINE) == 0
    verdict = folder.verdict(REJOINED)
    assert verdict.ok, verdict.failures


def test_an_unannounced_death_rolls_back_and_blacklists(folder: Folder) -> None:
    """A killed worker breaks the ring; the others go on from their last commit and never use its host again."""
    folder.list_hosts("abc")
    launcher = folder.launch(steps=80, options=("--commit-every", "1000"))
    folder.until_step(5)
    folder.kill("b")
    folder.until_ring("ac", step=3)
    assert launcher.wait(DEADLINE) == 0
    figures = folder.verdict(80).figures
    assert figures.parameters_equal
    assert figures.hosts_blacklisted == 1
    assert figures.steps_skipped == 0
    assert figures.steps_lost >= 5, "everything since the last commit"
    assert folder.rings() == ["abc", "ac"], "b is still listed"
    assert [event.text("host") for event in folder.events(JobEventKind.RING_BROKEN)] == ["b"]


def test_the_death_of_rank_0_keeps_the_state(folder: Folder) -> None:
    """A killed rank 0 takes at most the step under way with it, where each step is committed."""
    folder.list_hosts("abc")
    launcher = folder.launch(steps=60, options=("--commit-every", "1"))
    folder.until_step(5)
    folder.kill("a")
    folder.until_ring("bc")
    assert launcher.wait(DEADLINE) == 0
    figures = folder.verdict(60).figures
    assert figures.parameters_equal
    assert figures.steps_lost <= 1


def test_nobody_left_ends_the_launcher(folder: Folder) -> None:
    """When the last worker with the state dies, the launcher fails at once, whatever hosts there are."""
    folder.list_hosts("a")
    launcher = folder.launch(steps=10_000)
    folder.until_step(3)
    folder.kill("a")
    assert launcher.wait(DEADLINE) == 1


def test_below_the_minimum_survivors_wait_for_hosts(folder: Folder) -> None:
    """Too few survivors keep their state and go on when a host comes."""
    folder.list_hosts("abc")
    launcher = folder.launch(steps=60, least=3)
    folder.until_step(3)
    folder.kill("c")
    wait_until(lambda: bool(folder.events(JobEventKind.HOST_BLACKLISTED)), "the blacklisting of c")
    assert folder.rings() == ["abc"]
    folder.list_hosts("abcd")
    folder.until_ring("abd")
    assert launcher.wait(DEADLINE) == 0
    assert folder.verdict(60).figures.parameters_equal


def test_below_the_minimum_too_long_fails(folder: Folder) -> None:
    """After the time-out the launcher gives up and takes its workers with it."""
    folder.list_hosts("ab")
    launcher = folder.launch(steps=10_000, least=2, timeout=0.5)
    folder.until_step(2)
    survivor = folder.pids("a")["a"]
    folder.kill("b")
    assert launcher.wait(DEADLINE) == 1
    assert not any(is_alive(pid) for pid in survivor)


def test_the_start_waits_for_its_hosts(folder: Folder) -> None:
    """Nothing is started until as many hosts are listed as were asked for."""
    folder.list_hosts("ab")
    launcher = folder.launch(steps=10, start=3, timeout=0.8)
    assert launcher.wait(DEADLINE) == 1
    assert folder.rings() == []
    assert folder.pids("ab") == {"a": [], "b": []}
    folder.list_hosts("abc")
    assert folder.launch(steps=10, start=3).wait(DEADLINE) == 0


def test_a_failing_discovery_script_ends_the_job(folder: Folder) -> None:
    """A discovery script that exits non-zero kills the launcher, as the real one's does."""
    folder.list_hosts("ab")
    launcher = folder.launch(steps=10_000)
    folder.until_step(2)
    pids = folder.pids("ab")
    (folder.root / "hosts").unlink()
    assert launcher.wait(DEADLINE) == 1
    assert not any(is_alive(pid) for host in pids for pid in pids[host])


def test_sigterm_ends_launcher_and_workers(folder: Folder) -> None:
    """A SIGTERM ends all processes, says so in the exit code and leaves no file of a pid."""
    folder.list_hosts("ab")
    launcher = folder.launch(steps=10_000)
    folder.until_step(2)
    pids = folder.pids("ab")
    launcher.terminate()
    assert launcher.wait(DEADLINE) == 128 + signal.SIGTERM
    assert not any(is_alive(pid) for host in pids for pid in pids[host])
    assert folder.pids("ab") == {"a": [], "b": []}


def test_a_signal_to_the_launchers_group_blacklists_nobody(folder: Folder) -> None:
    """Workers stand for processes on other hosts: the signal is not theirs, and none fails before its launcher ends."""
    folder.list_hosts("abc")
    launcher = folder.launch(steps=10_000)
    folder.until_step(2)
    assert all(os.getpgid(pid) != launcher.pid for pids in folder.pids("abc").values() for pid in pids)
    os.killpg(launcher.pid, signal.SIGTERM)
    assert launcher.wait(DEADLINE) == 128 + signal.SIGTERM
    assert folder.events(JobEventKind.HOST_BLACKLISTED) == []


def until_stubborn(folder: Folder) -> list[int]:
    """Wait until the workers of a and b ignore SIGTERM and everything else that they are told; returns their pids."""
    wait_until(lambda: len(list((folder.root / "ready").iterdir())) == 2, "the workers to be stubborn")
    return [pid for pids in folder.pids("ab").values() for pid in pids]


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.path.join(sys.argv[1], str(os.getpid())), "w").close()
time.sleep(600)
"""


def test_workers_that_ignore_sigterm_are_killed(folder: Folder) -> None:
    """A worker that does not go in time is killed, and its file goes with it."""
    folder.list_hosts("ab")
    (folder.root / "ready").mkdir()
    launcher = folder.launch(steps=1, script=("-c", STUBBORN, str(folder.root / "ready")))
    pids = until_stubborn(folder)
    launcher.terminate()
    assert launcher.wait(DEADLINE) == 128 + signal.SIGTERM
    assert not any(is_alive(pid) for pid in pids)
    assert folder.pids("ab") == {"a": [], "b": []}


def test_kill_9_of_the_launcher_leaves_no_worker(folder: Folder) -> None:
    folder.list_hosts("ab")
    (folder.root / "ready").mkdir()
    launcher = folder.launch(steps=1, script=("-c", STUBBORN, str(folder.root / "ready")))
    pids = until_stubborn(folder)
    assert len(pids) == 2
    launcher.kill()
    launcher.wait(DEADLINE)
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "the workers to die")


def test_a_worker_that_cannot_start_is_blacklisted(folder: Folder) -> None:
    """A script that fails at once takes its hosts off the job, and with the last one the launcher ends."""
    folder.list_hosts("ab")
    assert folder.launch(steps=1, script=("-c", "import sys; sys.exit(3)")).wait(DEADLINE) == 1
    assert len(folder.events(JobEventKind.HOST_BLACKLISTED)) == 2


def test_pid_files_tell_a_process_from_its_successor(folder: Folder) -> None:
    """The file of a worker's pid holds the start time of that very process."""
    folder.list_hosts("a")
    folder.launch(steps=10_000)
    folder.until_step(1)
    (pid,) = folder.pids("a")["a"]
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    assert (folder.root / "state" / "nodes" / "a" / str(pid)).read_text() == started


def test_the_launcher_refuses_impossible_numbers(folder: Folder) -> None:
    folder.list_hosts("abc")
    assert folder.launch(steps=1, least=3, start=2).wait(DEADLINE) == 2


def test_host_lists_are_sets_of_names() -> None:
    assert parse_hosts("b:1\n\na\n b:4\n") == {"a", "b"}
