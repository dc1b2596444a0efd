"""Real training processes under test, and a fake supervisor for them."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import SDK, Script, Start

STRICT = ("-X", "dev", "-W", "error")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[FakeSupervisor]:
    """A fake supervisor, to which the identity in `tmp_path` leads."""
    with FakeSupervisor(heartbeat=0.1) as fake:
        fake.write_identity(tmp_path)
        yield fake


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a script with the identity in `tmp_path`; keyword arguments are its environment. It ends with the test."""
    running: list[Script] = []

    def begin(script: str, python: str = sys.executable, **environ: str) -> Script:
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
        running.append(Script(process, out, err))
        return running[-1]

    yield begin
    for script in running:
        with contextlib.suppress(ProcessLookupError):  # its forked children too, whatever it did to them
            os.killpg(script.process.pid, signal.SIGKILL)
        script.process.wait()
