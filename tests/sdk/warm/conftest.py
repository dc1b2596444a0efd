"""A virtual environment with programs that start warm."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.warm.warm_programs import WarmPrograms
from tests.testkit.waiting import wait_until


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[WarmPrograms]:
    """Programs whose templates end with the test. The path of a socket has at most 108 bytes, so it is a short one."""
    templates = Path(tempfile.mkdtemp(prefix="warm-"))
    made = WarmPrograms.make(tmp_path, templates)
    yield made
    shutil.rmtree(templates, ignore_errors=True)
    made.end(pid for pid in made.processes() if pid not in made.processes("template.py"))
    for process in made.started:
        process.communicate()
    wait_until(lambda: not made.processes(), lambda: f"the end of {made.processes()}")
