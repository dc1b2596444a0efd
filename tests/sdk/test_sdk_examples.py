"""The examples and the README's own test, run as users would."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import SDK
from tests.testkit.waiting import PATIENCE

EXAMPLES = SDK / "examples"
Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def example(supervisor: FakeSupervisor, tmp_path: Path) -> Iterator[Run]:
    """Start an example, of this supervisor's job, with a checkpoint in `tmp_path`."""
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        own = {"PYTHONPATH": str(SDK), "KUBEAI_DIR": str(tmp_path), "PATH": os.environ["PATH"], **environ}
        command = [sys.executable, str(EXAMPLES / name), str(tmp_path / "checkpoint"), *arguments]
        started.append(subprocess.Popen(command, env=own, text=True, stdout=subprocess.PIPE, start_new_session=True))
        before = len(supervisor.hellos)
        supervisor.wait_for(lambda: len(supervisor.hellos) > before)
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("data_loader.py", 75),
        ("distributed.py", 255),
        ("horovod_elastic.py", 255),
        ("plain_loop.py", 75),
        ("shared_checkpoint.py", 75),
    ],
)
def test_an_example_saves_is_held_and_leaves(
    supervisor: FakeSupervisor, example: Run, tmp_path: Path, name: str, code: int
) -> None:
    """Rank 0 of each that runs without a framework saves before it reports that, and exits once it is released."""
    script = example(name, RANK="0")
    assert supervisor.hellos[0].body["rank"] == 0
    supervisor.direct(0, directive="STOP")
    saved = supervisor.wait_for(lambda: supervisor.reports_of("saved"))[0]
    assert str(saved["step"]) in (tmp_path / "checkpoint").read_text()
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    supervisor.direct(0, directive="STOP", release=True)
    assert script.wait(PATIENCE) == code


def test_the_plain_loop_goes_on_where_it_stopped(supervisor: FakeSupervisor, example: Run, tmp_path: Path) -> None:
    """Twice, by SIGTERM, and then to its end: 0 only there."""
    supervisor.direct(generation=1)
    (tmp_path / "checkpoint").write_text('{"step": 7}')
    script = example("plain_loop.py")
    assert script.stdout is not None
    assert script.stdout.readline() == "from step 7\n"
    script.terminate()
    assert script.wait(PATIENCE) == 75
    again = example("plain_loop.py", "300")
    assert again.stdout is not None
    first = int(again.stdout.readline().split()[-1])
    assert first >= 7
    assert again.wait(PATIENCE) == 0


def test_a_second_run_of_a_shared_checkpoint_waits_for_the_first(example: Run, tmp_path: Path) -> None:
    """It continues from where the first one has saved when it was told to stop."""
    first = example("shared_checkpoint.py")
    assert first.stdout is not None
    assert first.stdout.readline() == "from step 0\n"
    second = example("shared_checkpoint.py")
    first.terminate()
    assert first.wait(PATIENCE) == 75
    saved = json.loads((tmp_path / "checkpoint").read_text())["step"]
    assert second.stdout is not None
    assert second.stdout.readline() == f"from step {saved}\n"


def test_only_rank_zero_of_the_distributed_example_saves(
    supervisor: FakeSupervisor, example: Run, tmp_path: Path
) -> None:
    script = example("distributed.py", RANK="1")
    supervisor.direct(1, directive="LEAVE")
    assert script.wait(PATIENCE) == 255
    assert not supervisor.reports_of("saved")
    assert not (tmp_path / "checkpoint").exists()


def test_the_readmes_test_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (SDK / "README.md").read_text(), re.DOTALL)
    (own,) = (block for block in blocks if "FakeSupervisor" in block)
    (tmp_path / "test_train.py").write_text(own)
    (tmp_path / "train.py").write_text((EXAMPLES / "plain_loop.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:asyncio",
        "--rootdir",
        ".",
    ]
    environ = {"PYTHONPATH": str(SDK), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
