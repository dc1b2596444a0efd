import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.testkit.controlplane.binaries import ASSETS, BinaryProgram
from tests.testkit.controlplane.procfs import processes, waits_for_a_lock
from tests.testkit.controlplane.running import NotReady
from tests.testkit.controlplane.shared import shared
from tests.testkit.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_SHARING = """
import pathlib, sys
from tests.testkit.controlplane.shared import shared
with shared(pathlib.Path(sys.argv[1])) as cluster:
    print(cluster.directory, flush=True)
    sys.stdin.read()
"""
_OWNING = """
import pathlib, sys
from tests.testkit.controlplane.binaries import binaries
from tests.testkit.controlplane.procfs import processes, waits_for_a_lock
from tests.testkit.controlplane.running import running
with running(binaries(), pathlib.Path(sys.argv[1]) / "own") as plane:
    print(plane.cluster.directory, flush=True)
    sys.stdin.read()
"""
_FAILING = "def test_that_fails(cluster): raise AssertionError(cluster)"


def test_all_users_have_the_same_one_until_the_last_is_gone(
    programs: Mapping[BinaryProgram, Path], tmp_path: Path
) -> None:
    """The one that started it may go first, and the last may be killed: nothing is left, and the next starts anew.

    A keeper that is killed takes everything with it.
    """
    assert programs
    with _using(_SHARING, tmp_path) as (first, directory), _using(_SHARING, tmp_path) as (second, same):
        assert same == directory
        keeper = _keeper(tmp_path)
        first.communicate()
        wait_until(lambda: waits_for_a_lock(keeper), "the keeper waits for the second user")
        assert len(_programs(tmp_path)) == len(BinaryProgram)
        second.kill()
        wait_until(lambda: not processes(tmp_path), "everything has ended")
        with _using(_SHARING, tmp_path) as (_, other):
            assert other != directory
            assert len(_programs(tmp_path)) == len(BinaryProgram)
            os.kill(_keeper(tmp_path), signal.SIGKILL)
            wait_until(lambda: not _programs(tmp_path), "all programs have ended")


def test_a_killed_test_run_takes_its_own_control_plane_with_it(
    programs: Mapping[BinaryProgram, Path], tmp_path: Path
) -> None:
    assert programs
    with _using(_OWNING, tmp_path) as (owner, _):
        assert len(_programs(tmp_path)) == len(BinaryProgram)
        owner.kill()
        wait_until(lambda: not processes(tmp_path), "everything has ended")


def test_one_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failing program's own words reach whoever wanted to use it, and nothing is left running."""
    for program in BinaryProgram:
        path = tmp_path / program
        path.write_text(f"#!/bin/sh\necho {program} has no wish to run\n", encoding="utf-8")
        path.chmod(0o755)
    monkeypatch.setenv(ASSETS, str(tmp_path))
    with pytest.raises(NotReady, match="has no wish to run"), shared(tmp_path):
        pass
    wait_until(lambda: not processes(tmp_path), "everything has ended")


def test_a_failed_test_shows_the_logs(programs: Mapping[BinaryProgram, Path], tmp_path: Path) -> None:
    """The end of each program's log is in the report, and the control plane of that run ends with it."""
    (tmp_path / "test_failing.py").write_text(_FAILING, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.controlplane.conftest", "-c", os.devnull, "--basetemp"]
    command += [str(tmp_path / "base"), str(tmp_path)]
    run = subprocess.run(command, check=False, cwd=_ROOT, capture_output=True, text=True)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    assert all(f"{program}.log" in run.stdout for program in programs)
    wait_until(lambda: not processes(tmp_path), "everything has ended")


@contextmanager
def _using(script: str, directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has a control plane, until its input ends; and where that has its files."""
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        line = process.stdout.readline().strip()
        assert line, "it did not start"
        yield process, line


def _keeper(directory: Path) -> int:
    [keeper] = (pid for pid, command in processes(directory).items() if "-m" in command)
    return keeper


def _programs(directory: Path) -> list[str]:
    names = {Path(command[0]).name for command in processes(directory).values()}
    return sorted(names & set(BinaryProgram))
