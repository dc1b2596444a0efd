"""`job-supervisor simulate` beside a supervisor that serves."""

import asyncio
import os
import pty
from pathlib import Path
from typing import cast

import pytest

from job_supervisor.cli import steering
from job_supervisor.cli.backend import Backend, DrillSubject, SeenStatus
from job_supervisor.cli.errors import UnreachableError
from supervisor.domain.notice import NoticeState, SubjectKind
from tests.job_supervisor.cli.cli_running import ended, interrupt, line, run, run_process, started
from tests.testkit.serving import Served
from tests.testkit.waiting import PATIENCE


def _states(served: Served) -> dict[str, NoticeState]:
    known = served.store.snapshot().notices.values()
    return {each.subject.name: each.state for each in known if each.simulated}


async def test_a_drill_says_what_it_will_do_begins_and_says_how_it_ends(served: Served, tmp_path: Path) -> None:
    """Which jobs are there, and what becomes of each; without --wait it does not stay."""
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    said = await run("simulate", "n2", "--lead", "2m", "--yes", "--data-dir", tmp_path)
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "resnet continues with 1 of 2 workers until the drill is over.",
        "Started the drill on node n2. It ends by itself in 2 min, or with `job-supervisor simulate --end node/n2`.",
    ]
    assert _states(served) == {"n2": NoticeState.ACTIVE}
    shown = await run("status", "--data-dir", tmp_path)
    assert "simulated (drill)" in shown.out
    told = await run("explain", "resnet", "--data-dir", tmp_path)
    assert "says simulated (a drill: the machine stays)." in told.out


async def test_a_drill_that_would_stop_a_job_says_so_before(served: Served, tmp_path: Path) -> None:
    """Nobody who has not confirmed it stops a job; where nobody can be asked it takes a word."""
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"])
    said = await run("simulate", "node/n2", "--data-dir", tmp_path)
    assert said.code == 64
    assert "resnet saves a checkpoint, is suspended, and resumes as a new run" in said.out
    assert "1 of 2 workers would remain and it needs 2" in said.out
    assert "--yes" in said.err
    assert not _states(served)


async def test_a_drill_where_no_job_is_says_so_and_is_held(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1"])
    said = await run("simulate", "n1", "--yes", "--data-dir", tmp_path)
    assert said.code == 0
    assert "No supervised job is on node n1" in said.out
    assert _states(served) == {"n1": NoticeState.ACTIVE}


@pytest.mark.parametrize("verb", ["simulate", "drain"])
async def test_a_node_that_nobody_knows_is_refused_before_anything_is_foretold(
    served: Served, tmp_path: Path, verb: str
) -> None:
    await served.peers.agents(["n1"])
    said = await run(verb, "nosuch", "--yes", "--data-dir", tmp_path)
    assert (said.code, said.out) == (66, "")
    assert said.err == "No agent has the name nosuch. `job-supervisor nodes` lists them.\n"


async def test_a_drill_is_ended_before_its_time(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    for node in ("n1", "n2"):
        await run("simulate", node, "--yes", "--data-dir", tmp_path)
    one = await run("simulate", "--end", "n1", "--data-dir", tmp_path)
    assert (one.code, one.out) == (0, "Ended the drill on node n1.\n")
    rest = await run("simulate", "--end", "--data-dir", tmp_path, "-o", "json")
    assert rest.json == {"ended": [{"kind": "node", "name": "n2"}]}
    none = await run("simulate", "--end", "--data-dir", tmp_path)
    assert (none.code, none.out) == (0, "There was no drill.\n")
    assert set(_states(served).values()) == {NoticeState.WITHDRAWN}


async def test_ctrl_c_ends_the_drill_that_is_waited_for(served: Served, tmp_path: Path) -> None:
    await served.peers.agents(["n1", "n2"])
    await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    arguments = ("simulate", "n2", "--lead", "600", "--wait", "--yes", "--data-dir", tmp_path)
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        assert "Drill: n2 will be reclaimed" in await line(command, "Shrinking")
        interrupt(command)
        said = await ended(command)
    assert (said.code, said.err) == (130, "Ended the drill on node n2.\n")
    assert _states(served) == {"n2": NoticeState.WITHDRAWN}


async def test_a_drill_that_is_waited_for_tells_what_becomes_of_the_job(served: Served, tmp_path: Path) -> None:
    """Until it is over and the job is at rest again, for people and for programs."""
    await served.peers.agents(["n1", "n2"])
    launcher, _ = await served.peers.running("resnet", ["n1", "n2"], min_workers=1)
    arguments = ("simulate", "n2", "--lead", "600", "--wait", "--yes", "--data-dir", tmp_path, "-o", "json")
    async with asyncio.timeout(PATIENCE), started(*arguments) as command:
        excluding = await launcher.lines.matching(exclusions=["n2"])
        await line(command, "Shrinking", command.stderr)
        await launcher.reports(applied=excluding["generation"])
        assert (await run("simulate", "--end", "--data-dir", tmp_path)).code == 0
        back = await launcher.lines.matching(exclusions=[])
        await launcher.reports(applied=back["generation"])
        said = await ended(command)
    assert said.code == 0, said.err
    assert said.json["subject"] == {"kind": "node", "name": "n2"}
    phases = said.json["phases"]["resnet"]
    assert "Shrinking" in phases
    assert phases[-1] == "Running"
    assert "The drill is over." in said.err
    assert _states(served) == {"n2": NoticeState.WITHDRAWN}


@pytest.mark.parametrize(("typed", "code"), [("n\n", 64), ("\n", 64), ("", 64), ("y\n", 0)])
async def test_whoever_sits_at_a_terminal_is_asked(served: Served, tmp_path: Path, typed: str, code: int) -> None:
    await served.peers.agents(["n1"])
    ours, theirs = pty.openpty()
    try:
        os.write(ours, typed.encode() or b"\x04")  # Nothing, and the end of it.
        said = await run_process("simulate", "n1", "--data-dir", tmp_path, stdin=theirs)
    finally:
        os.close(ours)
        os.close(theirs)
    assert said.code == code, said.err
    assert "Start the drill? [y/N]" in said.err
    assert len(_states(served)) == (code == 0)


class _Away:
    """A backend that answers once, is away, and then answers that the drill is over."""

    def __init__(self, *answers: SeenStatus | UnreachableError) -> None:
        self._answers = iter(answers)

    async def status(self) -> SeenStatus:
        answer = next(self._answers)
        if isinstance(answer, UnreachableError):
            raise answer
        return answer


async def test_a_supervisor_that_is_away_during_a_drill_is_missed_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_POLL_SECONDS", 0)
    here, gone, said = SeenStatus(now=0.0, jobs=[], notices=[]), UnreachableError("No supervisor answers."), list[str]()
    backend = cast("Backend", _Away(gone, gone, here))
    await steering.follow(backend, DrillSubject(kind=SubjectKind.NODE, name="n1"), here, said.append)
    assert [line.partition(" s  ")[2] for line in said] == [
        "No supervisor answers. Asking again; the drill ends by itself.",
        "The supervisor answers again.",
        "The drill is over.",
    ]


async def test_a_supervisor_that_stays_away_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_POLL_SECONDS", 0)
    monkeypatch.setattr(steering, "_SETTLING_SECONDS", -1)
    gone, here = UnreachableError("No supervisor answers."), SeenStatus(now=0.0, jobs=[], notices=[])
    backend, node = cast("Backend", _Away(gone)), DrillSubject(kind=SubjectKind.NODE, name="n1")
    with pytest.raises(UnreachableError):
        await steering.follow(backend, node, here, list[str]().append)
