"""`job-supervisor drain` and `undrain` beside a supervisor that serves."""

import asyncio
from pathlib import Path

from supervisor.domain.notice import NoticeState
from tests.job_supervisor.cli.cli_running import ended, line, run, started
from tests.testkit.serving import Served
from tests.testkit.waiting import PATIENCE


def _states(served: Served) -> dict[str, NoticeState]:
    known = served.store.snapshot().notices.values()
    return {each.subject.name: each.state for each in known if each.drains}


async def test_a_node_is_drained_followed_and_undrained(served: Served, tmp_path: Path) -> None:
    """The command tells what becomes of each job, and ends once none uses the node; everything shows who asked."""
    await served.peers.agents(["n1", "n2"])
    launcher, _ = await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    where = ("--data-dir", tmp_path)
    arguments = ("drain", "n2", "--reason", "new kernel", "--yes", "--wait", *where)
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        await line(command, "resnet continues with 1 of 2 workers until the drain is ended.")
        await line(command, "not used again until `job-supervisor undrain n2`")
        excluding = await launcher.lines.matching(exclusions=["n2"])
        await launcher.reports(applied=excluding["generation"])
        await line(command, "No supervised job uses node n2.")
        said = await ended(command)
    assert (said.code, said.err) == (0, "")
    for verb in ("status", "nodes"):
        shown = await run(verb, *where)
        assert "operator" in shown.out
    assert "new kernel" in (await run("status", *where)).out
    back = await run("undrain", "node/n2", *where)
    assert (back.code, back.out) == (0, "Node n2 is not drained any more.\n")
    await launcher.lines.matching(exclusions=[])
    assert _states(served) == {"n2": NoticeState.WITHDRAWN}
    assert (await run("undrain", "n2", *where)).code == 0


async def test_a_drain_that_takes_too_long_says_who_is_there_and_stands(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"])
    said = await run("drain", "n2", "--yes", "--wait", "--timeout", "5s", "--data-dir", tmp_path)
    assert said.code == 75
    assert "After 5 s, resnet is Stopping: n2 is drained by " in said.err
    assert "The drain stands." in said.err
    assert _states(served) == {"n2": NoticeState.ACTIVE}


async def test_a_drain_that_costs_a_checkpoint_is_an_error(served: Served, tmp_path: Path) -> None:
    """The node is free, and the exit code tells that steps are lost."""
    await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("resnet", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", 0)
    arguments = ("drain", "n2", "--yes", "--wait", "--data-dir", tmp_path)
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        stop = await process.lines.matching(directive="STOP")
        await process.reports("left", stop, step=987, error="OSError: a full disk")
        waiting = await launcher.lines.matching(order="wait")
        await launcher.reports(running=False, exit_code=1, applied=waiting["generation"])
        said = await ended(command)
    assert said.code == 75
    assert "but rank 0 could not save at step 987: OSError: a full disk. It is not known from which" in said.err


async def test_what_cannot_be_drained_says_why(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1"])
    where = ("--data-dir", tmp_path)
    unknown = await run("drain", "n9", "--yes", *where)
    assert (unknown.code, "No agent has the name n9." in unknown.err) == (66, True)
    unasked = await run("drain", "n1", *where)
    assert (unasked.code, "--yes" in unasked.err) == (64, True)
    pod = await run("drain", "pod/p", "--yes", *where)
    assert pod.code == 64
    assert not _states(served)
