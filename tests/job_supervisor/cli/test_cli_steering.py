"""`job-supervisor suspend`, `resume` and `stop` beside a supervisor that serves."""

import asyncio
import os
import pty
from pathlib import Path

import pytest

from tests.job_supervisor.cli.cli_running import Said, ended, line, run, run_process, started
from tests.testkit.serving import LauncherPeer, Served, ServedPeers
from tests.testkit.waiting import PATIENCE

NODES = ["n1", "n2"]


async def _saved(peers: ServedPeers, launcher: LauncherPeer, token: str, step: int = 7) -> None:
    """Rank 0 saves when it is told to, and the launcher ends its command."""
    process = await peers.process(token, "n1", 0)
    stop = await process.lines.matching(directive="STOP")
    await process.reports("saved", stop, step=step)
    waiting = await launcher.lines.matching(order="wait")
    await launcher.reports(running=False, exit_code=1, applied=waiting["generation"])


async def _steer(*arguments: str | Path) -> Said:
    return await run(*arguments, "--yes")


async def test_a_job_is_suspended_followed_and_resumed(served: Served, tmp_path: Path) -> None:
    """The command tells what will happen, who is told what, what was saved, and when it is done."""
    await served.peers.agents(NODES)
    launcher, order = await served.peers.running("resnet", NODES)
    where = ("--data-dir", tmp_path)
    arguments = ("suspend", "resnet", "--reason", "power cut", "--yes", "--wait", *where)
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        await line(command, "resnet saves a checkpoint, and stays suspended until `job-supervisor resume resnet`.")
        await line(command, "is Stopping")
        await _saved(served.peers, launcher, order["token"])
        await line(command, "has suspended the job: power cut. Rank 0 has saved a checkpoint of step 7.")
        said = await ended(command)
    assert (said.code, said.err) == (0, "")
    shown = await run("status", *where)
    assert "has suspended the job: power cut." in shown.out
    explained = await run("explain", "resnet", *where)
    assert "It stays suspended until somebody resumes it" in explained.out
    again = await _steer("suspend", "resnet", *where)
    assert (again.code, again.out.startswith("resnet is Suspended: ")) == (0, True)
    async with (
        asyncio.timeout(PATIENCE),
        started("resume", "resnet", "--wait", "-o", "json", *where) as command,
    ):
        resumed = await launcher.lines.matching(order="run", run=2)
        await launcher.reports(run=2, running=True, exit_code=None, applied=resumed["generation"])
        said = await ended(command)
    assert said.code == 0, said.err
    assert (said.json["job"], said.json["asked"], said.json["phases"][-1]) == ("resnet", "resume", "Running")
    assert "resnet may run again" in said.err


async def test_a_job_is_stopped_for_good(served: Served, tmp_path: Path) -> None:
    """Its launcher is told to end; whoever asks for more afterwards hears that it has ended."""
    await served.peers.agents(NODES)
    launcher, order = await served.peers.running("resnet", NODES)
    where = ("--data-dir", tmp_path)
    async with asyncio.timeout(PATIENCE), started("stop", "resnet", "-y", "--wait", *where) as command:
        await _saved(served.peers, launcher, order["token"])
        await launcher.lines.matching(order="end")
        said = await ended(command)
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == "resnet saves a checkpoint, and ends for good."
    for verb in ("suspend", "stop"):
        late = await _steer(verb, "resnet", *where)
        assert (late.code, late.err.startswith("resnet has ended: ")) == (66, True)


async def test_a_run_that_saved_nothing_is_an_error(served: Served, tmp_path: Path) -> None:
    """The job is suspended all the same, and the exit code tells a script that steps may be lost."""
    await served.peers.agents(NODES)
    launcher, _ = await served.peers.running("resnet", NODES)
    arguments = ("suspend", "resnet", "-y", "--wait", "--data-dir", tmp_path)
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        await line(command, "is Stopping")
        await launcher.reports(running=False, exit_code=1)
        said = await ended(command)
    assert said.code == 75
    assert said.err == "resnet is Suspended, but rank 0 has not answered: its last steps may be lost.\n"


async def test_the_wait_is_bounded_and_the_request_stands(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(NODES)
    await served.peers.running("resnet", NODES)
    said = await _steer("suspend", "resnet", "--wait", "--timeout", "5s", "--data-dir", tmp_path)
    assert said.code == 75
    assert "After 5 s, resnet is Stopping" in said.err
    assert "The request stands." in said.err
    assert served.job("resnet").observed.request is not None


async def test_a_job_that_nobody_holds_says_what_it_waits_for(served: Served, tmp_path: Path) -> None:
    """It was the supervisor that suspended it, or there is no capacity yet: nothing can be taken back."""
    await served.peers.agents(["n1"])
    await served.peers.launcher("resnet", NODES)
    said = await run("resume", "resnet", "--data-dir", tmp_path)
    assert said.code == 0
    assert said.out.splitlines()[0] == "Nobody has suspended or stopped resnet, which is Waiting."
    assert "n2: no agent is connected." in said.out


@pytest.mark.parametrize(("typed", "code"), [("n\n", 64), ("y\n", 0)])
async def test_whoever_sits_at_a_terminal_is_asked(served: Served, tmp_path: Path, typed: str, code: int) -> None:
    await served.peers.agents(NODES)
    await served.peers.running("resnet", NODES)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode())
        said = await run_process("stop", "resnet", "--data-dir", tmp_path, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert said.code == code, said.err
    assert "Stop resnet? [y/N]" in said.err
    assert (served.job("resnet").observed.request is not None) == (code == 0)


async def test_what_cannot_be_done_says_why(served: Served, tmp_path: Path) -> None:
    """No such job, nobody there to confirm, and a token that may only look."""
    await served.peers.agents(NODES)
    await served.peers.launcher("resnet", NODES)
    where = ("--data-dir", tmp_path)
    unknown = await _steer("suspend", "nobody", *where)
    assert (unknown.code, "There is no supervised job nobody." in unknown.err) == (66, True)
    unasked = await run("suspend", "resnet", *where)
    assert (unasked.code, "--yes" in unasked.err) == (64, True)
    token = tmp_path / "viewer"
    token.write_text(served.peers.tokens.viewer())
    denied = await _steer("suspend", "resnet", "--address", served.peers.http, "--token-file", token)
    assert (denied.code, "an operator's token" in denied.err) == (77, True)
    assert served.job("resnet").observed.request is None


async def test_a_supervisor_that_restarts_meanwhile_is_waited_for(served: Served, tmp_path: Path) -> None:
    """The command that waits goes on looking, until its time is up."""
    await served.peers.agents(NODES)
    await served.peers.running("resnet", NODES)
    arguments = ("suspend", "resnet", "-y", "--wait", "--timeout", "3s", "--data-dir", tmp_path)
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        await line(command, "is Stopping")
        await served.stop()
        said = await ended(command)
    assert (said.code, "The request stands." in said.err) == (75, True)
