"""Real training processes under test, and a fake supervisor for them."""

import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import SDK, Clean, Start, TrainingScript

STRICT = ("-X", "dev", "-W", "error")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[FakeSupervisor]:
    with FakeSupervisor(heartbeat=0.1) as fake:
        fake.write_identity(tmp_path)
        yield fake


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script with the identity in `tmp_path`; keyword arguments are its environment. It ends with the test."""
    running: list[TrainingScript] = []

    def begin(script: str, python: str = sys.executable, **environ: str) -> TrainingScript:
        out, err = (tmp_path / f"{name}-{len(running)}" for name in ("out", "err"))
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [python, *STRICT, "-u", "-c", textwrap.dedent(script)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**kept, "PYTHONPATH": str(SDK), "KUBEAI_DIR": str(tmp_path), **environ},
            )
        running.append(TrainingScript(process, out, err))
        return running[-1]

    yield begin
    for script in running:
        with contextlib.suppress(ProcessLookupError):  # its forked children too, whatever it did to them
            os.killpg(script.process.pid, signal.SIGKILL)
        script.process.wait()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist as anybody would who gets that."""
    home = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(home)]
    subprocess.run([*build, "-t", "sdist"], cwd=SDK, check=True, capture_output=True)
    with tarfile.open(next(home.glob("*.tar.gz"))) as sdist:
        sdist.extractall(home, filter="data")
    unpacked = next(path for path in home.iterdir() if path.is_dir())
    subprocess.run([*build, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    return next(home.glob("*.whl"))


@pytest.fixture
def clean(tmp_path: Path) -> Clean:
    home = tmp_path / "venv"
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True)
    return Clean(home, uv)
