"""The lease on a checkpoint's directory, taken and lost by real processes."""

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubeai.elastic as kubeai
import pytest
from kubeai.elastic.lease import CheckpointLease, HolderWatch
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Start, TrainingScript
from tests.testkit.waiting import wait_until

SECONDS = "3"  # a busy machine lets a holder wait for less than two thirds of this
FOR_EVER = "1000"  # a lease of this length is taken only if it was released
TRAINING = """
    import os, signal, sys, time
    import kubeai.elastic as kubeai

    home, name = os.environ["KUBEAI_DIR"] + "/checkpoint", os.environ["NAME"]
    lease = kubeai.checkpoint_lease(home, seconds=float(os.environ["SECONDS"]))

    def step(what):
        with open(home + "/journal", "a") as journal:
            journal.write(f"{lease.number} {name} {what}\\n")

    def asked(what):
        return os.path.exists(f"{home}/{what}-{name}")

    step("begins")
    while not asked("end"):
        if asked("stop"):
            os.remove(f"{home}/stop-{name}")
            os.kill(os.getpid(), signal.SIGSTOP)
        lease.check()
        step("trains")
        time.sleep(0.01)  # one step
    step("ends")
"""


class Runs:
    """Runs of one job that share a checkpoint's directory."""

    def __init__(self, home: Path, start: Start) -> None:
        self.home = home / "checkpoint"
        self._start = start

    def begin(self, name: str, seconds: str = SECONDS, script: str = TRAINING, **environ: str) -> TrainingScript:
        return self._start(script, NAME=name, SECONDS=seconds, **environ)

    def journal(self) -> list[str]:
        journal = self.home / "journal"
        return journal.read_text().splitlines() if journal.exists() else []

    def wait_for(self, line: str) -> None:
        wait_until(lambda: line in self.journal(), lambda: f"{line!r} in {self.journal()[-5:]}")

    def ask(self, what: str, name: str) -> None:
        (self.home / f"{what}-{name}").touch()

    def record(self, number: int) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.file(number).read_text())  # a renewal is one write
        return found

    def file(self, number: int) -> Path:
        return self.home / f".lease.{number:06d}"

    def wait_for_renewals(self, number: int, more: int) -> None:
        last = self.record(number)["beat"]
        wait_until(lambda: self.record(number)["beat"] >= last + more)

    def names(self) -> list[str]:
        """Who has trained, without repetitions of neighbours: ["a", "b"] if b began after a's last step."""
        names = [line.split()[1] for line in self.journal()]
        return [name for before, name in zip(["", *names], names, strict=False) if name != before]


@pytest.fixture
def runs(tmp_path: Path, start: Start) -> Runs:
    return Runs(tmp_path, start)


def test_a_released_lease_is_taken_at_once(runs: Runs) -> None:
    """Its time need not pass, and nothing of the earlier holder is left in the directory."""
    first = runs.begin("a", FOR_EVER)
    runs.wait_for("1 a trains")
    second = runs.begin("b", FOR_EVER)
    wait_until(lambda: "waits for the lease" in second.warnings(), second.output)
    runs.ask("end", "a")
    assert first.end() == 0
    runs.wait_for("2 b trains")
    assert runs.names() == ["a", "b"]
    assert [path.name for path in runs.home.glob(".lease.*")] == [".lease.000002"]


def test_a_holder_that_renews_keeps_it_for_longer_than_its_time(runs: Runs) -> None:
    """Nine renewals are one and a half times as long as the lease."""
    runs.begin("a")
    runs.wait_for("1 a trains")
    second = runs.begin("b")
    wait_until(lambda: "waits for the lease" in second.warnings(), second.output)
    runs.wait_for_renewals(1, 9)
    assert runs.names() == ["a"]


def test_the_lease_of_a_killed_holder_is_taken_after_its_time(runs: Runs) -> None:
    first = runs.begin("a", "1")
    runs.wait_for("1 a trains")
    first.process.kill()
    runs.begin("b", "1")
    runs.wait_for("2 b trains")
    assert runs.names() == ["a", "b"]


HELD = b'{"seconds": 5}'


@pytest.mark.parametrize(
    ("looks", "free"),
    [
        ([(0, None, 0, 0)], True),
        ([(1, b'{"released": true}', 0, 0)], True),
        ([(1, b'{"released": "yes"}', 0, 0)], False),
        ([(1, HELD, 0, 0), (1, HELD, 4.9, 4.9)], False),
        ([(1, HELD, 0, 0), (1, HELD, 5, 5)], True),
        ([(1, HELD, 0, 1), (1, HELD, 5.9, 9)], False),
        ([(1, HELD, 0, 0), (1, HELD + b" ", 4, 4), (1, HELD + b" ", 8.9, 8.9)], False),
        ([(1, HELD, 0, 0), (2, HELD, 4, 4), (2, HELD, 8.9, 8.9)], False),
        ([(1, HELD, 0, 0), (2, HELD, 4, 4), (2, HELD, 9, 9)], True),
        ([(1, b"", 0, 0), (1, b"", 2, 2)], True),
        ([(1, b"{", 0, 0), (1, b"{", 1.9, 9)], False),
        ([(1, b'{"seconds": 1}', 0, 0), (1, b'{"seconds": 1}', 1.9, 1.9)], False),
        ([(1, b'{"seconds": 1e99}', 0, 0), (1, b'{"seconds": 1e99}', 3600, 3600)], True),
        ([(1, None, 0, 0), (1, None, 1.9, 1.9)], False),
    ],
)
def test_a_lease_is_free_if_it_was_released_or_has_not_changed_for_its_time(
    looks: Sequence[tuple[int, bytes | None, float, float]], *, free: bool
) -> None:
    """For the longer one of the holder's time and the taker's own, which is 2 s here, between two looks."""
    watch = HolderWatch(2)
    assert [watch.is_free(*look) for look in looks][-1] is free


def test_a_holder_that_was_stopped_for_long_trains_no_step_more(runs: Runs) -> None:
    """Another run has taken the lease meanwhile, and trains."""
    first = runs.begin("a")
    runs.wait_for("1 a trains")
    runs.ask("stop", "a")
    runs.begin("b")
    runs.wait_for("2 b trains")
    first.process.send_signal(signal.SIGCONT)
    assert first.end() == 73
    assert "the lease on" in first.warnings()
    assert "Another run may train from this checkpoint, so this process ends" in first.warnings()
    assert runs.names() == ["a", "b"]


def test_a_holder_that_was_stopped_for_long_ends_even_if_nobody_took_the_lease(runs: Runs) -> None:
    """Somebody may be about to take it."""
    script = runs.begin("a", "1")
    runs.wait_for("1 a trains")
    runs.ask("stop", "a")
    status = Path(f"/proc/{script.process.pid}/stat")
    wait_until(lambda: status.read_text().split(")")[1].split()[0] == "T")
    over = time.clock_gettime(time.CLOCK_BOOTTIME) + 1
    wait_until(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > over)
    script.process.send_signal(signal.SIGCONT)
    assert script.end() == 73
    assert "could not be renewed for 0.666667 s: this process did not run" in script.warnings()


@pytest.mark.parametrize("late", ["check", "renew"])
def test_whichever_thread_runs_first_after_a_long_stop_ends_the_process(runs: Runs, late: str) -> None:
    """Without the thread that watches the time: a save or a renewal may be what the process does first."""
    late_script = """
        import os, pathlib, time
        from kubeai.elastic.lease import CheckpointLease

        home = pathlib.Path(os.environ["KUBEAI_DIR"])
        lease = CheckpointLease(home, 0.3)
        assert lease.take(1)
        until = time.clock_gettime(time.CLOCK_BOOTTIME) + 0.3
        while time.clock_gettime(time.CLOCK_BOOTTIME) < until:
            pass
        getattr(lease, os.environ["LATE"])()
    """
    script = runs.begin("a", script=late_script, LATE=late)
    assert script.end() == 73
    assert "could not be renewed for 0.2 s: this process did not run" in script.warnings()


def test_a_renewal_that_hangs_ends_the_process(runs: Runs) -> None:
    """As on a file system whose server is gone: nobody reads from this pipe, so opening it waits for ever."""
    script = runs.begin("a", script=TRAINING.replace("lease.check()", "pass"))
    runs.wait_for("1 a trains")
    os.mkfifo(runs.home / "pipe")
    (runs.home / "pipe").replace(runs.file(1))
    assert script.end() == 73
    assert "could not be renewed for 2 s" in script.warnings()


def test_a_renewal_that_fails_for_long_ends_the_process(runs: Runs) -> None:
    script = runs.begin("a", script=TRAINING.replace("lease.check()", "pass"))
    runs.wait_for("1 a trains")
    runs.file(1).rename(runs.home / "away")
    runs.file(1).mkdir()
    assert script.end() == 73
    assert "could not be renewed for 2 s: [Errno 21]" in script.warnings()


@pytest.mark.parametrize("checks", ["lease.check()", "pass"])
def test_a_holder_without_its_file_ends(runs: Runs, checks: str) -> None:
    """A taker has removed it. Both the next save and the next renewal find that out."""
    script = runs.begin("a", SECONDS if checks == "pass" else FOR_EVER, TRAINING.replace("lease.check()", checks))
    runs.wait_for("1 a trains")
    runs.file(1).unlink()
    assert script.end() == 73
    assert "its file was removed" in script.warnings()


@pytest.mark.parametrize("checks", ["lease.check()", "pass"])
def test_a_holder_that_sees_a_higher_number_ends(runs: Runs, checks: str) -> None:
    script = runs.begin("a", SECONDS if checks == "pass" else FOR_EVER, TRAINING.replace("lease.check()", checks))
    runs.wait_for("1 a trains")
    draft = runs.home / "draft"
    draft.write_text('{"pod": "other-0", "cluster": "east"}')
    draft.replace(runs.file(2))
    assert script.end() == 73
    assert "it was taken: held by pod other-0, cluster east" in script.warnings()


def test_many_runs_train_one_after_the_other(runs: Runs) -> None:
    """All of them wait for the same holder, and each has a number of its own."""
    script = TRAINING.replace('while not asked("end")', "for _ in range(3)")
    first = runs.begin("holder", FOR_EVER)
    runs.wait_for("1 holder trains")
    others = [runs.begin(f"run-{number}", FOR_EVER, script) for number in range(4)]
    wait_until(lambda: all("waits for the lease" in other.warnings() for other in others))
    runs.ask("end", "holder")
    assert [each.end(120) for each in (first, *others)] == [0] * 5
    assert len(runs.names()) == 5
    assert [line.split()[0] for line in runs.journal() if line.endswith("begins")] == ["1", "2", "3", "4", "5"]


def test_of_many_takers_at_once_one_gets_a_number(tmp_path: Path) -> None:
    ready = threading.Barrier(8)

    def take(number: int) -> bool:
        ready.wait()
        return CheckpointLease(tmp_path, 1000).take(number)

    with ThreadPoolExecutor(ready.parties) as pool:
        for number in range(1, 40):
            assert sum(pool.map(take, [number] * ready.parties)) == 1


def test_a_taker_that_comes_late_gets_no_number_that_was_used_before(tmp_path: Path) -> None:
    """It had looked before it was stopped. Since then others have taken this number and the next, and removed it."""
    (tmp_path / ".lease.000003").write_text("{}")
    assert not CheckpointLease(tmp_path, 1000).take(2)
    assert [path.name for path in tmp_path.iterdir()] == [".lease.000003"]


def test_a_process_that_saves_at_sigterm_holds_the_lease_until_it_ends(runs: Runs) -> None:
    """Its save takes longer than the lease."""
    script = TRAINING.replace(
        'step("begins")',
        """
    def terminate(*_):
        step("is told")
        while not asked("end"):  # a save
            time.sleep(0.01)
        step("has saved")
        sys.exit(1)

    signal.signal(signal.SIGTERM, terminate)
    step("begins")""",
    )
    first = runs.begin("a", script=script)
    runs.wait_for("1 a trains")
    second = runs.begin("b")
    wait_until(lambda: "waits for the lease" in second.warnings(), second.output)
    first.process.terminate()
    runs.wait_for("1 a is told")
    runs.wait_for_renewals(1, 7)
    runs.ask("end", "a")
    assert first.end() == 1
    runs.wait_for("2 b trains")
    assert runs.names() == ["a", "b"]


def test_a_process_that_waits_leaves_when_it_is_told_to_stop(supervisor: FakeSupervisor, runs: Runs) -> None:
    runs.begin("a", FOR_EVER)
    runs.wait_for("1 a trains")
    waiting = TRAINING.replace("lease = ", "kubeai.init(rank=0)\n    lease = ")
    second = runs.begin("b", FOR_EVER, waiting, KUBEAI_EXIT_HOLD="0")
    wait_until(lambda: "waits for the lease" in second.warnings(), second.output)
    supervisor.direct(0, directive="STOP")
    assert second.end() == 75
    assert runs.names() == ["a"]


def test_a_forked_child_neither_releases_nor_shares_it(runs: Runs) -> None:
    """It can check it, and waits like any other process if it asks for one."""
    script = TRAINING.replace(
        'step("begins")',
        """
    child = os.fork()
    if child == 0:
        lease.check()
        lease.release()
        sys.exit(3)
    step(f"has seen {os.waitpid(child, 0)[1] >> 8}")
    child = os.fork()
    if child == 0:
        kubeai.checkpoint_lease(home, seconds=1000)
        step("child")
        os._exit(0)
    step("begins")""",
    )
    first = runs.begin("a", FOR_EVER, script)
    runs.wait_for("1 a has seen 3")
    wait_until(lambda: "waits for the lease" in first.warnings(), first.output)
    runs.wait_for("1 a trains")
    assert runs.record(1)["released"] is False
    runs.ask("end", "a")
    assert first.end() == 0
    wait_until(lambda: runs.file(2).exists())


def test_the_file_says_who_holds_it(supervisor: FakeSupervisor, runs: Runs) -> None:
    """The job is that of the supervisor's last answer, and the next renewal names it."""
    script = TRAINING.replace("lease = ", "kubeai.init(rank=0)\n    lease = ")
    runs.begin("a", script=script, KUBEAI_CLUSTER="east", KUBEAI_HOST="worker-0")
    supervisor.direct(generation=1)
    runs.wait_for("1 a trains")
    wait_until(lambda: runs.record(1)["run"])
    assert {name: runs.record(1)[name] for name in ("cluster", "pod", "job", "run", "seconds", "released")} == {
        "cluster": "east",
        "pod": "worker-0",
        "job": "job",
        "run": 1,
        "seconds": 3.0,
        "released": False,
    }


def test_one_process_has_one_lease_on_a_directory(tmp_path: Path) -> None:
    """By whatever path it is named; a released one is taken anew."""
    (tmp_path / "link").symlink_to(tmp_path / "checkpoint")
    lease = kubeai.checkpoint_lease(tmp_path / "checkpoint")
    assert kubeai.checkpoint_lease(str(tmp_path / "link")) is lease
    lease.release()
    again = kubeai.checkpoint_lease(tmp_path / "checkpoint")
    assert (lease.number, again.number) == (1, 2)
    again.release()
    again.release()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"seconds": "1"}', b'{"seconds": -1e999, "pod": 1}'])
def test_a_file_that_is_not_understood_counts_as_held(tmp_path: Path, start: Start, content: bytes) -> None:
    """Until it has not changed for the taker's own time; its writer may have been killed."""
    runs = Runs(tmp_path, start)
    runs.home.mkdir()
    runs.file(7).write_bytes(content)
    runs.begin("a", "0.05")
    wait_until(lambda: runs.file(8).exists() and not runs.file(7).exists())


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_has_a_time(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match="no time of a lease"):
        kubeai.checkpoint_lease(tmp_path, seconds=seconds)
