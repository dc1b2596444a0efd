"""The units of examples/systemd/ are what systemd reads, and their variables are settings."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from node_agent.settings import AgentSettings
from servicekit.settings import load
from supervisor.settings import Settings

_UNITS = sorted((Path(__file__).parents[2] / "examples" / "systemd").glob("*.service"))
_SECONDS = 60.0


@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_a_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that is there in the place of the installed one."""
    analyze, program = shutil.which("systemd-analyze"), shutil.which("true")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit.read_text("utf-8"), flags=re.MULTILINE))
    command = [analyze, "verify", "--recursive-errors=no", str(copy)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_their_variables_are_settings() -> None:
    """A misspelt one would be refused, or ignored by systemd."""
    set_by = {unit.stem: _variables(unit) for unit in _UNITS}
    assert load(Settings, "JOB_SUPERVISOR_", set_by["job-supervisor"]).data_dir == Path("/var/lib/job-supervisor")
    assert str(load(AgentSettings, "NODE_AGENT_", set_by["node-agent"]).supervisor) == "supervisor.example:8470"


def _variables(unit: Path) -> Mapping[str, str]:
    """Returns the variables that a unit sets, in which systemd fills in the host and the directory of credentials."""
    text = unit.read_text("utf-8").replace("%H", "gpu-1").replace("%d", "/run/credentials/node-agent.service")
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
