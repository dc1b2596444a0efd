"""The versions of torch, and the table of what each change cost."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.frameworks_installation import FRAMEWORKS, OLDER_TORCH, FrameworksNotInstallable, installed
from tests.testkit.torches import ForeignTorch
from tests.torchrun.torchrun_job import HOSTS
from tests.torchrun.torchrun_processes import BACKEND, PROCESSES, Torch
from tests.torchrun.torchrun_records import Cost
from tests.torchrun.torchrun_scenes import Row

NEWER, OLDER = "2.15.0", "2.6.0"
_ENVIRONMENTS = {NEWER: FRAMEWORKS, OLDER: OLDER_TORCH}
_ROW = "what it cost"


@pytest.fixture
def torch(request: pytest.FixtureRequest) -> Torch:
    """A version of torch, by default the newer one."""
    version = getattr(request, "param", NEWER)
    if BACKEND == "nccl":
        return _on_gpus()
    try:
        return Torch(version, installed(_ENVIRONMENTS[version]))
    except FrameworksNotInstallable as reason:
        pytest.skip(f"torch {version} cannot be installed here: {reason}")


def _on_gpus() -> Torch:
    """The torch of another Python, whatever its version is, on a machine that has a GPU for each process."""
    python = os.environ.get("TORCHRUN_PYTHON", "python3")
    found = ForeignTorch.of(python)
    if found is None:
        pytest.skip(f"{python} has no torch")
    wanted = len(HOSTS) * PROCESSES
    if found.gpus < wanted:
        pytest.skip(
            f"NCCL needs a GPU for each of {wanted} processes, and there are {found.gpus} (TORCHRUN_PROCESSES=1: four)"
        )
    return Torch(found.version, found.home)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the training script writes."""
    made = tmp_path / "training"
    made.mkdir()
    return made


@pytest.fixture
def row(record_property: Callable[[str, object], None], torch: Torch) -> Row:
    """Adds a row to the table."""

    def note(event: str, backend: str, cost: Cost) -> None:
        trained = "" if cost.trained is None else f"{cost.trained:.3f}"
        cells = (event, backend, torch.version, str(cost.burned), str(cost.redone), f"{cost.pause:.2f}", trained)
        record_property(_ROW, cells)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [value for report in reports for name, value in report.user_properties if name == _ROW]
    if rows:
        terminalreporter.section("what each change cost")
        for cells in [("event", "backend", "torch", "burned", "redone", "pause", "trained"), *rows]:
            terminalreporter.write_line("{:<34}  {:<20}  {:<7}  {:>6}  {:>6}  {:>7}  {:>7}".format(*cells))
