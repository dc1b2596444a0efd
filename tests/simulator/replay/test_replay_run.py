"""The replay command with real processes and one removal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.cloud.process import leftovers
from simulator.runner import ReplayExitCode


def replay(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tiny part; its worlds and its result lie in the directory."""
    command = [sys.executable, "-m", "simulator", "replay", "--part", "tiny", "--json", str(directory / "result.json")]
    env = {**os.environ, "TMPDIR": str(directory)}
    return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.long
def test_a_tiny_replay_passes_and_says_so_to_machines(tmp_path: Path) -> None:
    """One of three nodes goes: nothing lost, one change, equal parameters, exit code 0, and nothing is left behind."""
    ended = replay(tmp_path)
    assert ended.returncode == ReplayExitCode.OK, ended.stdout + ended.stderr
    assert "passed" in ended.stdout
    (scenario,) = json.loads((tmp_path / "result.json").read_text())["scenarios"]
    assert scenario["ok"]
    assert [group["changes"] for group in scenario["verdict"]["figures"]["groups"]] == [1]
    assert scenario["costs"]["step"] >= 0.2
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.long
def test_a_damaged_replay_fails(tmp_path: Path) -> None:
    """An update that is left out shows in the parameters, in the exit code, and in the result for machines."""
    ended = replay(tmp_path, "--fault", "skip-update")
    assert ended.returncode == ReplayExitCode.FAILED
    assert "parameters differ" in ended.stdout
    assert not json.loads((tmp_path / "result.json").read_text())["ok"]
    (kept,) = tmp_path.glob("elastic-replay-*")
    assert f"Logs and events are kept in {kept}" in ended.stdout
    assert leftovers(kept) == []


def test_a_replay_that_would_prove_nothing_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    """Too fast for the promise: one line says so, and the exit code says usage."""
    assert main(["replay", "--part", "ci", "--speed", "60"]) == ReplayExitCode.USAGE
    output = capsys.readouterr()
    assert "0.5 s on the clock" in output.err
    assert output.out == ""
