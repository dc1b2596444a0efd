"""What every command line has: a version, suggestions, and completion for shells."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from job_supervisor.cli.command import main as job_supervisor
from node_agent.__main__ import main as node_agent
from node_agent.keeper.__main__ import main as state_keeper
from supervisor.__main__ import main as supervisor

_BASH = shutil.which("bash")
_COMMANDS = {
    "elastic-job-supervisor": "supervisor",
    "elastic-node-agent": "node_agent",
    "elastic-state-keeper": "node_agent.keeper",
    "job-supervisor": "job_supervisor.cli.command",
}
_MAINS: dict[str, Callable[[], int | None]] = {
    "elastic-job-supervisor": supervisor,
    "elastic-node-agent": node_agent,
    "elastic-state-keeper": state_keeper,
    "job-supervisor": job_supervisor,
}


def _run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    call = (sys.executable, "-m", _COMMANDS[command], *arguments)
    return subprocess.run(call, capture_output=True, text=True, check=False)


Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    """A command in the test's own process: its exit code, output and errors."""

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        try:
            code = _MAINS[command]() or 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_command_has_a_version(command: str) -> None:
    said = _run(command, "--version")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"{command} {version('elastic-job-supervisor')}\n"


@pytest.mark.parametrize(
    ("command", "arguments", "first"),
    [
        ("job-supervisor", ["statsu"], "job-supervisor: unknown command 'statsu'. Did you mean 'status'?"),
        ("job-supervisor", ["status", "--adress=x"], "unknown argument '--adress=x'. Did you mean '--address'?"),
        ("elastic-job-supervisor", ["sreve"], "unknown command 'sreve'. Did you mean 'serve'?"),
        ("elastic-job-supervisor", ["token", "viewr"], "unknown kind 'viewr'. Did you mean 'viewer'?"),
        ("elastic-node-agent", ["--verson"], "unknown argument '--verson'. Did you mean '--version'?"),
    ],
)
def test_a_misspelt_word_gets_a_suggestion_and_one_line_of_usage(
    command: str, arguments: list[str], first: str, here: Here
) -> None:
    code, out, errors = here(command, *arguments)
    assert (code, out) == (64, "")
    message, usage = errors.splitlines()
    assert message.endswith(first)
    assert usage.startswith(f"Run `{command}")


def test_a_word_that_resembles_nothing_gets_the_choices(here: Here) -> None:
    (message, _) = here("elastic-job-supervisor", "token", "xyz")[2].splitlines()
    assert message.endswith("unknown kind 'xyz'. Choose from agent, launcher, viewer, operator.")


@pytest.mark.parametrize("command", ["elastic-job-supervisor", "job-supervisor"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh"])
def test_there_is_completion_for_each_shell(command: str, shell: str, here: Here) -> None:
    code, out, errors = here(command, "completion", shell)
    assert (code, errors) == (0, "")
    assert command in out


@pytest.mark.skipif(_BASH is None, reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """As bash calls it, with the words that were typed."""
    script = tmp_path / "completion"
    script.write_text(_run("job-supervisor", "completion", "bash").stdout)

    def completed(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in ("job-supervisor", *words))
        code = f"""
            source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}
            "$(complete -p job-supervisor | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
            echo "${{COMPREPLY[@]}}"
        """
        return subprocess.run([str(_BASH), "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert completed("sta") == ["status"]
    assert completed("status", "--addr") == ["--address"]
