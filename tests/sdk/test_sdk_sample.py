"""The sample job: real gradients, a checkpoint that is loaded again, and one process per host."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kubeai.elastic.sample import model

from tests.sdk.sdk_scripts import SDK
from tests.testkit.waiting import wait_until

LAUNCHER = [sys.executable, "-m", "kubeai.elastic.sample.launcher"]


def _launcher(home: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "PYTHONPATH": str(SDK),
        "KUBEAI_DIR": str(home),
        "KUBEAI_HOSTS_FILE": str(home / "hostfile"),
        "KUBEAI_HOSTS_PORT": "0",
    }
    files = ("--checkpoint", str(home / "checkpoint"), "--progress", str(home))
    command = [*LAUNCHER, *files, "--step-seconds", "0.01", *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def _progress(home: Path) -> dict[str, object]:
    file = home / "run-1.json"
    fields: dict[str, object] = json.loads(file.read_text()) if file.exists() else {}
    return fields


def test_training_lowers_the_loss() -> None:
    state, losses = model.FIRST, []
    for _ in range(100):
        gradients = [model.gradient(state, rank) for rank in range(2)]
        losses.append(sum(one.loss for one in gradients))
        state = model.advanced(state, gradients)
    assert state.step == 100
    assert losses[-1] < losses[0] / 100


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    assert model.load(file) == model.FIRST
    state = model.State(7, (0.1, -2.0))
    model.save(file, state)
    assert model.load(file) == state
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_it_starts_at_its_checkpoint_and_ends_at_its_last_step(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a\nb\n")
    model.save(tmp_path / "checkpoint", model.State(25, model.FIRST.parameters))
    with _launcher(tmp_path, "--steps", "30") as launcher:
        _, error = launcher.communicate()
    assert launcher.returncode == 0, error
    assert _progress(tmp_path) | {"loss": 0} == {"first_step": 25, "step": 30, "loss": 0, "hosts": ["a", "b"]}


def test_it_follows_the_host_list_between_two_steps(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a\nb\n")
    with _launcher(tmp_path) as launcher:
        try:
            wait_until(lambda: _progress(tmp_path).get("hosts") == ["a", "b"])
            (tmp_path / "hostfile").write_text("b\nc\n")
            wait_until(lambda: _progress(tmp_path).get("hosts") == ["b", "c"])
            assert _progress(tmp_path)["first_step"] == 0
            assert launcher.poll() is None
        finally:
            launcher.kill()


def test_a_process_that_fails_ends_the_run(tmp_path: Path) -> None:
    """kubeai-run starts the next one, from the checkpoint."""
    (tmp_path / "hostfile").write_text("a\n")
    (tmp_path / "checkpoint").write_text("damaged")
    with _launcher(tmp_path) as launcher:
        _, error = launcher.communicate()
    assert launcher.returncode == 1
    assert b"sample job: the process on a ended with 1" in error
