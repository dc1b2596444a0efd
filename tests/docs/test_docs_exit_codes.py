"""The page of the exit codes agrees with the commands."""

import subprocess
import sys
from pathlib import Path

import pytest

_PAGE = Path(__file__).parents[2] / "docs/reference/exit-codes.md"
_COMMANDS = {
    "`elastic-job-supervisor`": "supervisor.__main__",
    "`elastic-node-agent`": "node_agent.__main__",
    "`elastic-state-keeper`": "node_agent.keeper.__main__",
    "`job-supervisor`, `kubectl job-supervisor`": "job_supervisor.cli.command",
    "`kubeai-run`": "kubeai.elastic.commands.run",
}


def _documented(command: str) -> dict[str, str]:
    rows = [line.strip("|").split("|") for line in _PAGE.read_text().splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in rows[0]].index(command)
    cells = {row[0].strip(): row[column].strip() for row in rows[2:]}
    return {code: meaning.replace("`", "") for code, meaning in cells.items() if meaning}


def _told(module: str) -> dict[str, str]:
    """From the help; some commands have a few more words on the page than there."""
    call = (sys.executable, "-c", f"from {module} import main; main()", "--help")
    shown = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    lines = shown.split("exit codes:\n")[1].split("\n\n")[0].splitlines()
    return dict(line.strip().split(maxsplit=1) for line in lines)


@pytest.mark.parametrize("command", _COMMANDS)
def test_the_page_lists_the_exit_codes_of_the_help(command: str) -> None:
    documented, told = _documented(command), _told(_COMMANDS[command])
    assert documented.keys() == told.keys()
    assert [code for code in told if told[code].split()[:2] != documented[code].split()[:2]] == []
