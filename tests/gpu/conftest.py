"""A torch that finds a GPU, and the figures that the tests found.

GPU_DEVICE=cpu tries the tests themselves on a machine without.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.gpu_programs import DEVICE, programs_of
from tests.sdk.warm.warm_programs import WarmPrograms
from tests.testkit.torches import ForeignTorch
from tests.testkit.waiting import wait_until


@pytest.fixture(scope="session")
def torch() -> ForeignTorch:
    """The torch of FRAMEWORKS_PYTHON."""
    python = os.environ.get("FRAMEWORKS_PYTHON", "python3")
    found = ForeignTorch.of(python)
    if found is None:
        pytest.skip(f"{python} has no torch")
    if DEVICE == "cuda" and not found.gpus:
        pytest.skip(f"torch {found.version} of {python} finds no GPU")
    return found


@pytest.fixture
def programs(tmp_path: Path, torch: ForeignTorch) -> Iterator[WarmPrograms]:
    """Programs of that torch, whose templates end with the test."""
    templates = Path(tempfile.mkdtemp(prefix="warm-"))
    made = programs_of(torch, tmp_path, templates)
    yield made
    shutil.rmtree(templates, ignore_errors=True)
    made.end(made.processes())
    for process in made.started:
        process.communicate()
    wait_until(lambda: not made.processes(), lambda: f"the end of {made.processes()}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {value}")
