"""A folder to run training jobs in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulator.elastic.training_jobs import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder for one job; its processes end with the test."""
    one = Folder(tmp_path)
    one.identity.mkdir()
    yield one
    one.close()
