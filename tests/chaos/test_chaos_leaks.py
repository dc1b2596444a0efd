"""Hundreds of interruptions later, a service holds no more tasks, descriptors, threads or memory than before."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from tests.chaos.chaos_crowd import STREAMS, come_and_die
from tests.chaos.chaos_service import life
from tests.chaos.chaos_witness import WITNESS_FILE, WitnessedHold, held
from tests.node_agent.agent_process import agent
from tests.node_agent.fake_supervisor import FakeAgentService, fake_supervisor
from tests.testkit.waiting import until

_WITNESS = "tests.chaos.chaos_witness"
_WARM_UP, _CROWDS = 3, 10
_FIRST_CUTS, _CUTS = 50, 300
_MAX_BYTES = 6 * 1024 * 1024
"""Allocators keep a little. A stream that is kept costs some 12 KB, and far more than 500 end here."""
_MAX_OBJECTS = 0.5
"""For each interruption: one that is kept is a dozen objects, with its task, its request and its buffers."""


async def _settled(look: Callable[[], Awaitable[WitnessedHold]], before: WitnessedHold) -> WitnessedHold:
    """What it holds once that is no more than before, or after 30 s."""
    deadline = time.monotonic() + 30
    while not (now := await look()).is_no_more_than(before) and time.monotonic() < deadline:
        pass
    return now


def _nothing_was_kept(before: WitnessedHold, after: WitnessedHold, interruptions: int) -> None:
    assert after.tasks - before.tasks == {}
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.objects - before.objects < _MAX_OBJECTS * interruptions
    assert after.resident_bytes - before.resident_bytes < _MAX_BYTES


async def test_a_supervisor_keeps_nothing_of_those_who_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers come twice, go without a word or are killed, jobs end: 800 streams later all is as before."""
    directory, observer = tmp_path / "data", tmp_path / "witness"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WITNESS_FILE, str(observer))
    async with life(directory, (_WITNESS, "supervisor", "serve"), connection_seconds=1) as one:
        idle = await held(one.process.pid, observer)
        for number in range(1, 1 + _WARM_UP):
            await come_and_die(directory, number)
        before = await _settled(lambda: held(one.process.pid, observer), idle)
        for number in range(1 + _WARM_UP, 1 + _WARM_UP + _CROWDS):
            await come_and_die(directory, number)
        after = await _settled(lambda: held(one.process.pid, observer), before)
    _nothing_was_kept(before, after, _CROWDS * STREAMS)
    assert after.tasks == idle.tasks


async def test_an_agent_keeps_nothing_of_streams_that_were_cut(tmp_path: Path) -> None:
    """Streams end in five ways, one of them with the whole supervisor: 300 later all is as before."""
    observer, announced = tmp_path / "witness", tmp_path / "announced"
    (tmp_path / "token").write_text("secret")
    announced.write_text("2100-01-01T00:00:00Z")
    async with fake_supervisor() as supervisor:
        environ = {
            WITNESS_FILE: str(observer),
            "NODE_AGENT_NODE_NAME": "n1",
            "NODE_AGENT_NODE_UID": "machine-1",
            "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
            "NODE_AGENT_TOKEN_FILE": str(tmp_path / "token"),
            "NODE_AGENT_SOURCES": "file",
            "NODE_AGENT_FILE_PATH": str(announced),
            "NODE_AGENT_POLL_SECONDS": "0.05",
        }
        async with agent(environ, (_WITNESS, "agent")) as process:
            await _cut(supervisor, _FIRST_CUTS)
            # To look is what takes some 270 objects, once.
            await held(process.process.pid, observer)
            before = await held(process.process.pid, observer)
            await _cut(supervisor, _CUTS)
            after = await _settled(lambda: held(process.process.pid, observer), before)
            assert process.process.returncode is None
    _nothing_was_kept(before, after, _CUTS)


async def _cut(supervisor: FakeAgentService, times: int) -> None:
    """Cut so many streams, and wait for the next one each time."""
    ends = (None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL)
    for number in range(times):
        await until(lambda: _has_said_all(supervisor))
        stream = supervisor.streams.pop()
        if number % 10:
            stream.say(ends[number % len(ends)])
        else:
            await supervisor.stop()
            await supervisor.start()


def _has_said_all(supervisor: FakeAgentService) -> bool:
    return bool(supervisor.streams and supervisor.streams[-1].messages and not supervisor.streams[-1].over)
