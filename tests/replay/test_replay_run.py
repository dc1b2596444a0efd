"""The command itself, with everything real and one removal."""

import json
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.stage import ExitCode


def test_a_tiny_replay_passes_and_says_so_to_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One removal of three nodes: nothing lost, one change, equal parameters, exit code 0."""
    result = tmp_path / "result.json"
    assert main(["replay", "--part", "tiny", "--json", str(result)]) == ExitCode.OK
    (act,) = json.loads(result.read_text())["acts"]
    assert act["ok"]
    assert [group["changes"] for group in act["verdict"]["figures"]["groups"]] == [1]
    assert act["costs"]["step"] >= 0.2
    assert "passed" in capsys.readouterr().out


def test_a_damaged_replay_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update that is left out shows in the parameters, in the exit code, and in the result for machines."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = tmp_path / "result.json"
    arguments = ["--part", "tiny", "--fault", "skip-update", "--json", str(result)]
    assert main(["replay", *arguments]) == ExitCode.FAILED
    assert not json.loads(result.read_text())["ok"]
    output = capsys.readouterr().out
    assert "parameters differ" in output
    assert "Logs and events are kept in" in output


def test_a_replay_that_would_prove_nothing_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    """Too fast for the promise: one line says so, and the exit code says usage."""
    assert main(["replay", "--part", "ci", "--speed", "60"]) == ExitCode.USAGE
    output = capsys.readouterr()
    assert "0.5 s on the clock" in output.err
    assert output.out == ""
