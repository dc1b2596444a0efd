import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simulator.cloud.metadata import MetadataServer
from simulator.cloud.nodes import AgentCommand, SimulatedNodes, worker_pids
from simulator.cloud.observer import observe
from simulator.cloud.paths import CloudPaths
from simulator.cloud.process import CloudChild, ProcessEnded, carries, environment, leftovers, spawn
from simulator.cloud.provider import Provider
from simulator.cloud.replay import play, replay
from simulator.cloud.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice, Withdraw
from simulator.cloud.trace import Node
from simulator.events import EventLog, JobEvent, JobEventKind, read
from tests.testkit.waiting import until

A, B, C = Node("a"), Node("b"), Node("c")
SLEEP = ["sleep", "600"]
# Polls its metadata once and stays, as an agent would for all that a node cares.
AGENT = """
import sys, time, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5)
except urllib.error.HTTPError as error:
    error.close()
time.sleep(600)
"""


class CloudOfNodes:
    def __init__(self, root: Path, metadata: MetadataServer) -> None:
        self.paths = CloudPaths(root)
        self.metadata = metadata
        self.nodes = SimulatedNodes(self.paths, self._agent)
        self.truth = EventLog(self.paths.truth, "cloud")
        self.provider = Provider(metadata, self.nodes, self.truth)

    def _agent(self, node: Node) -> AgentCommand:
        url = f"{self.metadata.url_of(node)}/latest/meta-data/instance/spot/termination-time"
        return AgentCommand([sys.executable, "-S", "-c", AGENT, url], {})

    def work(self, node: Node) -> CloudChild:
        """Start a worker on a node, as a launcher would."""
        root = self.paths.root
        child = spawn("worker", SLEEP, environment(root, {}), self.paths.log("worker"))
        self.paths.pids(node).mkdir(parents=True, exist_ok=True)
        (self.paths.pids(node) / str(child.pid)).touch()
        return child

    def hosts(self) -> list[str]:
        return self.paths.hosts.read_text().split()

    def happened(self) -> list[JobEvent]:
        return read(self.paths.truth)


@asynccontextmanager
async def cloud(root: Path) -> AsyncIterator[CloudOfNodes]:
    """A cloud without nodes; in the end nothing of it is left."""
    metadata = MetadataServer()
    await metadata.start()
    one = CloudOfNodes(root, metadata)
    try:
        yield one
    finally:
        await one.nodes.close()
        await metadata.stop()
        one.truth.close()
    assert leftovers(root) == []


async def test_nodes_arrive_listed_and_polled(tmp_path: Path) -> None:
    """Populated means: every agent has asked its metadata, and the operator lists the node with one slot."""
    async with cloud(tmp_path) as one:
        await one.provider.populate([A, B, C], at_once=2)
        assert [one.metadata.poll_count(node) for node in (A, B, C)] == [1, 1, 1]
        assert one.hosts() == ["a:1", "b:1", "c:1"]
        assert [event.kind for event in one.happened()] == [JobEventKind.NODE_ADDED] * 3


async def test_an_agent_that_ends_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    paths = CloudPaths(tmp_path)
    metadata = MetadataServer()
    nodes = SimulatedNodes(paths, lambda _: AgentCommand(["sh", "-c", "echo no token; exit 3"], {}))
    with (
        EventLog(paths.truth, "cloud") as truth,
        pytest.raises(ProcessEnded, match=r"agent of a ended with 3:\nno token"),
    ):
        await Provider(metadata, nodes, truth).populate([A])
    await nodes.close()


async def test_a_node_goes_with_everything_on_it_and_the_operator_notices_later(tmp_path: Path) -> None:
    """Agent and workers are gone at once, the line in the list half a second later; other nodes are not touched."""
    async with cloud(tmp_path) as one:
        await one.provider.populate([A, B])
        mine, other = one.work(A), one.work(B)
        one.provider.kill(A)
        assert one.hosts() == ["a:1", "b:1"]
        assert await one.nodes.agent(A).wait(30) == -signal.SIGKILL
        assert await mine.wait(30) == -signal.SIGKILL
        await until(lambda: one.hosts() == ["b:1"])
        assert other.running
        assert one.nodes.agent(B).running
        await other.kill()


async def test_a_worker_that_starts_on_a_node_just_gone_is_ended_too(tmp_path: Path) -> None:
    async with cloud(tmp_path) as one:
        await one.provider.populate([A])
        one.provider.kill(A)
        await until(lambda: one.hosts() == [])
        assert await one.work(A).wait(30) == -signal.SIGKILL


async def test_a_node_that_comes_back_at_once_keeps_its_workers(tmp_path: Path) -> None:
    async with cloud(tmp_path) as one:
        await one.provider.populate([A])
        one.provider.kill(A)
        await one.nodes.agent(A).wait(30)
        await one.provider.populate([A])
        worker = one.work(A)
        await asyncio.sleep(0.7)  # Longer than the operator and many sweeps would need.
        assert worker.running
        assert one.hosts() == ["a:1"]
        await worker.kill()


async def test_a_pid_of_somebody_else_is_never_ended(tmp_path: Path) -> None:
    """A stale pid file names whatever process has that number by now: without the world's mark it is left alone."""
    async with cloud(tmp_path / "world") as one:
        await one.provider.populate([A])
        stranger = spawn("stranger", SLEEP, dict(os.environ), tmp_path / "stranger.log")
        one.paths.pids(A).mkdir(parents=True)
        (one.paths.pids(A) / str(stranger.pid)).touch()
        assert worker_pids(one.paths, A) == [stranger.pid]
        one.provider.kill(A)
        await until(lambda: one.hosts() == [])
        assert stranger.running
        await stranger.kill()


async def test_what_outlives_its_parent_is_found_by_the_mark(tmp_path: Path) -> None:
    """A process whose starter is gone is still one of the world's; one of another world is not."""
    log = tmp_path / "log"
    here, there = tmp_path / "here", tmp_path / "there"
    starter = spawn("starter", ["sh", "-c", "sleep 600 & echo $!"], environment(here, {}), log)
    assert await starter.wait(30) == 0
    # Until it has become what it was started as, it is a copy of its starter.
    await until(lambda: [one.command for one in leftovers(here)] == ["sleep 600"])
    (orphan,) = leftovers(here)
    assert str(orphan.pid) == starter.tail().strip()
    assert leftovers(there) == []
    os.kill(orphan.pid, signal.SIGKILL)
    await until(lambda: not carries(orphan.pid, here))


def test_settings_at_the_terminal_do_not_reach_a_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KUBEAI_DIR that somebody exported would mix two worlds up."""
    for name in ("KUBEAI_DIR", "NODE_AGENT_SOURCES", "JOB_SUPERVISOR_DATA_DIR", "SIM_EVENTS"):
        monkeypatch.setenv(name, "mine")
    env = environment(tmp_path, {"SIM_EVENTS": "theirs"})
    assert "mine" not in env.values()
    assert env["SIM_EVENTS"] == "theirs"


async def test_a_replay_does_each_step_in_its_time_and_writes_the_truth(tmp_path: Path) -> None:
    """Notice, withdrawal, removal and arrival happen as planned, in order, and the end is said."""
    steps = (
        ScheduledNotice(0.1, A, 0.5, "group-1"),
        ScheduledNotice(0.1, B, 9.0, "withdrawn", synthetic=True),
        Withdraw(0.3, B),
        KillNode(0.6, A),
        KillNode(0.6, B),
        AddNode(0.7, C),
    )
    async with cloud(tmp_path) as one:
        await one.provider.populate([A, B])
        started = time.time()
        await replay(one.provider, ReclaimSchedule((A, B), steps, 0.9), one.truth)
        events = one.happened()[2:]
    assert [event.kind for event in events] == [
        JobEventKind.NOTICE_SHOWN,
        JobEventKind.NOTICE_SHOWN,
        JobEventKind.NOTICE_WITHDRAWN,
        JobEventKind.NODE_GONE,
        JobEventKind.NODE_GONE,
        JobEventKind.NODE_ADDED,
        JobEventKind.SCENARIO_ENDED,
    ]
    for event, at in zip(events, (0.1, 0.1, 0.3, 0.6, 0.6, 0.7, 0.9), strict=True):
        assert event.t - started >= at - 0.01
    assert events[0].fields["deadline"] - started > 0.59
    assert [event.fields["synthetic"] for event in events[:2]] == [False, True]
    # B's notice was taken back: nobody announced that it would go.
    assert [event.fields["announced"] for event in events[3:5]] == [True, False]


async def test_a_late_notice_does_not_move_the_deadline(tmp_path: Path) -> None:
    """On a busy machine the promise shrinks with the time that is left; the removal comes as planned."""
    async with cloud(tmp_path) as one:
        await one.provider.populate([A])
        started = time.time()
        await play(one.provider, [ScheduledNotice(0.1, A, 6.0, "group-1")], elapsed=lambda: 2.0)
        (notice,) = one.happened()[1:]
    # Two seconds of the six are over when it begins to play.
    assert notice.fields["deadline"] - started > 4.09
    assert notice.fields["deadline"] - notice.t == pytest.approx(notice.fields["lead"], abs=0.01)
    assert notice.fields["lead"] < 4.11


async def test_the_observer_dates_every_change_of_the_exclusions(tmp_path: Path) -> None:
    """One event a change, none for a rewrite of the same hosts; a file that is not there excludes nobody."""
    path = tmp_path / "exclusions"
    with EventLog(tmp_path / "events", "observer") as log:
        watching = asyncio.create_task(observe(path, log))
        for hosts, changes in ((["b", "a"], 1), (["a", "b"], 1), ([], 2), (["c"], 3)):
            (tmp_path / "new").write_text("".join(f"{host}\n" for host in hosts))
            (tmp_path / "new").replace(path)
            await asyncio.sleep(0.06)  # Three looks, where the machine is not busy.
            await until(lambda changes=changes: len(read(tmp_path / "events")) >= changes)  # type: ignore[misc]
        watching.cancel()
        await asyncio.wait([watching])
    assert [event.texts("hosts") for event in read(tmp_path / "events")] == [("a", "b"), (), ("c",)]
