"""A fake supervisor, and a directory in which tests start kubeai-run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.commands.commands_harness import Launchpad


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    with FakeSupervisor(heartbeat=0.2) as fake:
        yield fake


@pytest.fixture
def launchpad(tmp_path: Path, supervisor: FakeSupervisor) -> Iterator[Launchpad]:
    pad = Launchpad(tmp_path, supervisor, [])
    yield pad
    pad.clean_up()
