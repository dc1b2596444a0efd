"""An agent that is frozen or hangs is killed by the kernel, so that nobody takes its node for watched."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.node_agent.agent_process import AgentProcess, agent
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

SECONDS = 2.0


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A supervisor whose heartbeats are so far apart that they tell nothing of an agent."""
    async with serving(tmp_path, heartbeat_seconds=60.0) as supervisor:
        yield supervisor


@pytest.fixture
def environ(served: Served, tmp_path: Path) -> dict[str, str]:
    token_file = tmp_path / "agent-token"
    token_file.write_text(served.peers.tokens.agent("n1"))
    return {
        "NODE_AGENT_NODE_NAME": "n1",
        "NODE_AGENT_NODE_UID": "i-1",
        "NODE_AGENT_SUPERVISOR": served.peers.grpc,
        "NODE_AGENT_TOKEN_FILE": str(token_file),
        "NODE_AGENT_SOURCES": "file",
        "NODE_AGENT_FILE_PATH": str(tmp_path / "reclaim"),
        "NODE_AGENT_POLL_SECONDS": "0.02",
        "NODE_AGENT_WATCHDOG_SECONDS": f"{SECONDS:g}",
    }


async def _killed(running: AgentProcess) -> None:
    async with asyncio.timeout(60):
        assert await running.process.wait() == -signal.SIGKILL


async def test_a_frozen_agent_is_killed_and_its_node_is_silent(served: Served, environ: dict[str, str]) -> None:
    """SIGSTOP: the supervisor's own heartbeats and pings would find it after a minute and more."""
    async with agent(environ) as running:
        known = await served.agent_is("n1", connected=True)
        assert known["silent_seconds"] is None
        running.process.send_signal(signal.SIGSTOP)
        await _killed(running)
        silent = await served.agent_is("n1", connected=False)
    assert silent["sources"] == [{"source": "file", "state": "unknown"}]
    assert silent["silent_seconds"] > 0.0


async def test_an_agent_that_works_lives_longer_than_the_limit(served: Served, environ: dict[str, str]) -> None:
    async with agent(environ) as running:
        await served.agent_is("n1", connected=True)
        began = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() >= began + 1.5 * SECONDS)
        assert running.process.returncode is None
        await running.stop()
    assert running.process.returncode == 0
    assert running.event("watchdog.off") is None


async def test_an_agent_whose_event_loop_hangs_is_killed(environ: dict[str, str], tmp_path: Path) -> None:
    """A token file that cannot be read and does not fail, as on a dead network file system."""
    os.mkfifo(tmp_path / "pipe")
    async with agent({**environ, "NODE_AGENT_TOKEN_FILE": str(tmp_path / "pipe")}) as running:
        await _killed(running)


_ONE_LOOP_HANGS = """
import asyncio
from node_agent.watchdog import kernel_watchdog
from servicekit.logs import LogFormat, LogLevel, configure

configure(LogFormat.JSON, LogLevel.INFO)
answers = iter([[], [], *[["source aws"]] * 10])
watchdog = kernel_watchdog(1.0)
asyncio.run(watchdog.run(lambda: next(answers)))
"""


def test_an_agent_of_which_one_loop_hangs_is_killed_and_says_which() -> None:
    """As its liveness probe would end it, which a stand-alone agent does not have."""
    done = subprocess.run([sys.executable, "-c", _ONE_LOOP_HANGS], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stderr.count('"agent.hangs"') == 1
    assert "source aws" in done.stderr


async def test_it_can_be_switched_off(served: Served, environ: dict[str, str]) -> None:
    async with agent({**environ, "NODE_AGENT_WATCHDOG_SECONDS": "0"}) as running:
        await served.agent_is("n1", connected=True)
        assert _timers(running) == []
        assert running.event("watchdog.off") is None


async def test_the_timer_of_an_agent_runs_on_a_clock_that_stands_still_in_suspend(
    served: Served, environ: dict[str, str]
) -> None:
    """A laptop that was closed for an hour must not find its agents killed."""
    async with agent(environ) as running:
        await served.agent_is("n1", connected=True)
        assert _timers(running) == ["1"]  # CLOCK_MONOTONIC


def _timers(running: AgentProcess) -> list[str]:
    """The clocks of the process's timers."""
    lines = Path(f"/proc/{running.process.pid}/timers").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("ClockID:")]


async def test_an_agent_under_a_debugger_is_left_alone(served: Served, environ: dict[str, str]) -> None:
    """A debugger such as pdb traces its program, and stops it for as long as a person thinks."""
    traced = "import sys; sys.settrace(lambda *_: None); from node_agent.__main__ import main; main()"
    async with agent(environ, program=["-c", traced]) as running:
        await served.agent_is("n1", connected=True)
        line = running.event("watchdog.off")
        assert line is not None
        assert "debugger" in line["reason"]
        assert _timers(running) == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
async def test_the_first_process_of_a_container_says_that_the_kernel_cannot_kill_it(
    served: Served, environ: dict[str, str]
) -> None:
    """The kernel ignores SIGKILL for such a process, so the pods of the chart share their process namespace."""
    wrapper = ["unshare", "--pid", "--fork", "--kill-child", sys.executable]
    async with agent(environ, wrapper=wrapper) as running:
        await served.agent_is("n1", connected=True)
        line = running.event("watchdog.off")
        assert line is not None
        assert "process namespace" in line["reason"]
