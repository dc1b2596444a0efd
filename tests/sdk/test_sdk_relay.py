"""Processes of one host share a stream to a real supervisor, whatever happens to the one that holds it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kubeai.elastic import identity, wire
from kubeai.elastic.relay import PodRelay, relay_name
from kubeai.elastic.testing import FakeSupervisor
from kubeai.elastic.threads import StderrLog
from kubeai.elastic.wire import CallAddress

from tests.sdk.sdk_scripts import Start, TrainingScript
from tests.testkit.serving import AgentPeer, Served
from tests.testkit.waiting import PATIENCE, until

SOMEBODY_ELSE = 12345

TRAINING = """
    import os, sys, threading, time
    import kubeai.elastic as kubeai
    from kubeai.elastic import wire

    opened, silence = wire.open_stream, float(os.environ.get("SILENCE", "60"))
    wire.open_stream = lambda *arguments: opened(*arguments, silence)
    init = kubeai.init  # imports the rest: another user may not be able to read the modules
    os.setuid(int(os.environ.get("USER_ID", os.getuid())))
    init(rank=lambda: int(os.environ["NUMBER"]))
    os.environ["KUBEAI_EXIT_HOLD"] = "0"
    told = set()
    while kubeai.check_alive() and "leave" not in told:
        if any(thread.name == "kubeai-relay" for thread in threading.enumerate()) and "relay" not in told:
            told.add("relay")
            print("relay")
        if kubeai.directive().generation and "joined" not in told:
            told.add("joined")
            print("joined")
        if os.environ.get("FORK") and "forked" not in told and "joined" in told:
            told.add("forked")
            if os.fork() == 0:
                while os.getppid() != 1:
                    time.sleep(0.01)
                time.sleep(120)
        if os.path.exists(os.environ["KUBEAI_DIR"] + "/leave-" + os.environ["NUMBER"]):
            told.add("leave")
        time.sleep(0.005)
    print("ends", kubeai.check_alive())
"""


@dataclass(frozen=True, slots=True)
class Host:
    """Training processes of one job on one host."""

    served: Served
    directory: Path
    start: Start
    agent: AgentPeer

    async def run(self, count: int, **environ: str) -> list[TrainingScript]:
        """Start processes with the ranks from 0, and wait until all are connected."""
        scripts = [self.start(TRAINING, NUMBER=str(number), **environ) for number in range(count)]
        await self.connected(count)
        await until(lambda: all("joined" in script.out.read_text() for script in scripts))
        return scripts

    async def connected(self, processes: int, streams: int | None = None) -> None:
        """Wait until this many processes are connected, by this many streams."""

        def seen() -> tuple[int, int]:
            here = self.served.processes
            return len(here.workers(self.served.job("job").id)), here.count

        await until(
            lambda: seen() == (processes, streams or seen()[1]),
            lambda: f"{processes} processes on {streams} streams: {seen()}",
            seconds=90,
        )


@pytest.fixture
async def host(served: Served, start: Start, tmp_path: Path) -> Host:
    agent = await served.peers.agent("n1")
    _, order = await served.peers.running("job", ["n1"])
    identity.write(identity.RunIdentity(tmp_path, served.peers.http, order["token"], "job", 1, None))
    return Host(served, tmp_path, start, agent)


def relay_of(scripts: list[TrainingScript]) -> TrainingScript:
    [relay] = [script for script in scripts if "relay" in script.out.read_text().split()]
    return relay


async def test_eight_processes_share_one_stream_and_hear_each_its_own(host: Host) -> None:
    """Rank 0 stops first, and its answer ends the others; nothing is written to the directory: it may be read-only."""
    before = set(host.directory.iterdir())
    scripts = await host.run(8)
    await host.connected(8, streams=1)
    assert all(file.name.startswith(("out-", "err-")) for file in set(host.directory.iterdir()) - before)
    await host.agent.notices("n1", left=3600.0)
    await until(lambda: "ends False" in scripts[0].out.read_text())
    await until(lambda: host.served.job("job").observed.acknowledgement is not None)
    await until(lambda: all("ends False" in script.out.read_text() for script in scripts))


async def test_another_process_speaks_at_once_when_the_relay_is_killed(host: Host) -> None:
    """Their flags stay up; no child that the relay has forked keeps its name or its stream."""
    scripts = await host.run(8, FORK="1")
    await host.connected(8, streams=1)
    relay = relay_of(scripts)
    relay.process.kill()
    await host.connected(7, streams=1)
    others = [script for script in scripts if script is not relay]
    await until(lambda: any("relay" in script.out.read_text().split() for script in others))
    assert not any("ends" in script.out.read_text() for script in others)


async def test_a_process_that_a_dying_relay_has_accepted_is_the_next_relay(host: Host) -> None:
    """A killed process frees its name a moment after the kernel has taken a connection for it."""
    own = identity.read(host.directory)
    assert own is not None
    dying = wire.listen_locally(relay_name(own))
    script = host.start(TRAINING, NUMBER="0")
    peer, _ = await asyncio.to_thread(dying.accept)
    wire.release(dying)
    peer.close()
    await host.connected(1, streams=1)
    await until(lambda: "relay" in script.out.read_text().split())


async def test_another_process_speaks_when_the_relay_ends_or_the_stream_does(host: Host) -> None:
    scripts = await host.run(3)
    await host.connected(3, streams=1)
    (host.directory / f"leave-{scripts.index(relay_of(scripts))}").touch()
    await host.connected(2, streams=1)
    host.served.processes.finish("a goodbye of the supervisor")
    await host.connected(2, streams=1)


async def test_a_relay_that_is_stopped_silences_nobody(host: Host) -> None:
    """The others open streams of their own; when it goes on, it takes nothing from them."""
    scripts = await host.run(3, SILENCE="2")
    await host.connected(3, streams=1)
    relay = relay_of(scripts)
    relay.process.send_signal(signal.SIGSTOP)
    await host.connected(3, streams=3)
    relay.process.send_signal(signal.SIGCONT)
    await host.connected(3, streams=3)
    await host.agent.notices("n1", left=3600.0)
    await until(lambda: "ends False" in scripts[0].out.read_text())


async def test_sharing_can_be_switched_off(host: Host) -> None:
    await host.run(3, KUBEAI_RELAY="0")
    await host.connected(3, streams=3)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
async def test_processes_of_different_users_do_not_share(host: Host) -> None:
    """Each user's processes have a relay of their own."""
    host.directory.chmod(0o755)
    for file in ("token", "address", "job", "run"):
        (host.directory / file).chmod(0o644)
    for parent in host.directory.parents:
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    await host.run(2)
    for number in (2, 3):
        host.start(TRAINING, NUMBER=str(number), USER_ID=str(SOMEBODY_ELSE))
    await host.connected(4, streams=2)


SQUATTER = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0kubeai-" + sys.argv[1])
sock.listen()
print("listening", flush=True)
while True:
    peer, _ = sock.accept()
    peer.sendall(b"\\0" * 100 if len(sys.argv) > 3 else b"HTTP/1.1 200 OK\\r\\n\\r\\n{}")
    peer.close()
"""


@contextmanager
def squatter(name: str, user: int, *arguments: str) -> Iterator[None]:
    """A process of some user that has taken the name of the relay."""
    command = [sys.executable, "-c", SQUATTER, name, str(user), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["another user", "binary", "no stream"])
async def test_a_process_that_has_taken_the_name_only_prevents_sharing(host: Host, kind: str) -> None:
    """Of another user, or of the same and talking nonsense."""
    if kind == "another user" and os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    own = identity.read(host.directory)
    assert own is not None
    user = SOMEBODY_ELSE if kind == "another user" else os.geteuid()
    with squatter(relay_name(own), user, *(["binary"] if kind == "binary" else [])):
        await host.run(2)
        await host.connected(2, streams=2)


HEAD = b"POST /v1/processes/stream HTTP/1.1\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\0" * 40_000,
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD % 2 + b"[]",
        HEAD % 9 + b'{"process',
        HEAD % 99_999,
        HEAD % 4 + b'"\xff\xff"',
        HEAD % 15 + b'{"process": []}',
        HEAD % 16 + b'{"process": "x"}',
        HEAD % 12_000 + b"[" * 12_000,
    ],
)
async def test_nonsense_on_its_socket_does_not_harm_a_relay(host: Host, nonsense: bytes) -> None:
    await host.run(1)
    own = identity.read(host.directory)
    assert own is not None
    peers = [wire.connect_locally(relay_name(own), 5.0) for _ in range(3)]
    for peer in peers:
        peer.sendall(nonsense)
    host.start(TRAINING, NUMBER="1")
    await host.connected(2, streams=1)
    for peer in peers:
        wire.release(peer)


def test_processes_of_different_jobs_runs_and_directories_have_different_relays(tmp_path: Path) -> None:
    """The directory is told by its inode: all pods mount theirs at the same path."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (tmp_path / "link").symlink_to(first)
    own = identity.RunIdentity(first, "http://a", "token", "job", 1, None)
    others = [
        replace(own, directory=second),
        replace(own, job="other"),
        replace(own, run=2),
        replace(own, job=None, run=None),
    ]
    names = {relay_name(each) for each in (own, *others)}
    assert len(names) == 5
    same = replace(own, directory=tmp_path / "link", token="renewed", address="http://b")
    assert relay_name(same) == relay_name(own)


def test_a_relay_that_is_closed_while_it_opens_its_stream_leaves_nothing_open() -> None:
    name, ready = os.urandom(8).hex(), b'{"answers": [{}]}'
    with socket.create_server(("127.0.0.1", 0)) as server, closing(wire.listen_locally(name)) as listener:
        there = CallAddress(f"http://127.0.0.1:{server.getsockname()[1]}", "token")
        relay = PodRelay(listener, lambda: there, StderrLog())
        relay.start()
        peer = wire.connect_locally(name, 5.0)
        peer.sendall(HEAD % 16 + b'{"process": "x"}')
        stream, _ = server.accept()
        relay.close()
        stream.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        call, _ = server.accept()
        call.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(ready), ready))
        with stream, call:
            read_to_the_end(stream)
            read_to_the_end(call)
    wire.release(peer)


def read_to_the_end(connection: socket.socket) -> None:
    """Read what the other side sends, until it ends the connection."""
    connection.settimeout(PATIENCE)
    while connection.recv(65536):
        pass


def test_with_a_supervisor_that_knows_no_relays_each_has_a_stream(supervisor: FakeSupervisor, start: Start) -> None:
    """What it refuses is said to nobody: nothing is wrong."""
    scripts = [start(TRAINING, NUMBER=str(number)) for number in range(2)]
    supervisor.wait_for(lambda: len(supervisor.open_streams) == 2)
    supervisor.direct(directive="STOP")
    for script in scripts:
        script.wait_for_line("ends False")
        script.end()
    supervisor.wait_for(lambda: len(supervisor.reports_of("left")) == 2)
