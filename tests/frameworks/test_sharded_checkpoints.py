"""Sharded checkpoints on disk, which one process of torch saves and loads."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.frameworks_world import FrameworksScript


@pytest.mark.brief
def test_only_complete_checkpoints_are_loaded_and_the_newest_remain(frameworks: Path, tmp_path: Path) -> None:
    """Model, optimizer, scheduler and random numbers come back; what interrupted saves have left does not stay."""
    for name in (".incomplete-3", "step-000000000009"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").touch()
    script = FrameworksScript(frameworks, Path(__file__).with_name("frameworks_checkpoints.py"))
    command = [str(frameworks / "bin" / "python"), str(script.path), str(tmp_path)]
    environ = {**os.environ, **script.environment(tmp_path)}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    facts = json.loads(done.stdout)
    assert (facts["first"], facts["loaded_step"]) == (0, 9)
    assert facts["loaded"] == facts["saved"]
    assert facts["names"] == ["step-000000000002", "step-000000000009"]
    assert facts["refusal"].startswith("the checkpoint of rank 0: ")
