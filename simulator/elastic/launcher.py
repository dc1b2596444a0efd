"""An elastic launcher on one machine: ``python -m simulator.elastic.launcher … -- COMMAND``.

It follows a host discovery script and keeps one worker process on every listed host, as Horovod elastic 0.28.1 does
over ssh. It exits with 0 when a worker has exited with 0, with 1 when the job cannot continue (the state is lost, too
few hosts for too long, the discovery script failed), and with 128 + N on signal N. Its workers never outlive it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from simulator.elastic.control import (
    RENDEZVOUS_VARIABLE,
    WORKER_VARIABLE,
    Leave,
    MalformedMessageError,
    Message,
    Synced,
    Update,
    WorkerBroken,
    WorkerHello,
    WorkerPlace,
    WorkerReady,
    decode,
    encode,
)
from simulator.elastic.events import Discovered, Exited, JobEnded, LauncherEvent, MessageReceived
from simulator.elastic.membership import (
    Action,
    CallOff,
    Dismiss,
    ElasticMember,
    ElasticSituation,
    FormRing,
    MemberPhase,
    Spawn,
    WorkerId,
    chosen_hosts,
    decide,
    formed,
    state_is_lost,
)
from simulator.elastic.processes import WorkerChild, output_of, start_worker
from simulator.elastic.settings import ElasticSettings, parse_arguments, parse_hosts
from simulator.events import EventLog, JobEventKind

_DISCOVERY_LIMIT = 10.0
"""Seconds for one call of the discovery script. It takes milliseconds; a hanging one must not look healthy."""
_TICK = 0.25
"""Seconds between checks of the time limits, which are tens of seconds."""
_START_SECONDS = 60.0
"""Limit from a worker's start to its hello: 24 at once on two busy cores take a few seconds."""
_STRAGGLER_SECONDS = 45.0
"""After a ring breaks, its members return within their own timeout of 30 s. One that does not is stuck."""
_FINISH_SECONDS = 10.0
"""Limit for the others to exit after the first worker has exited with 0, because all are at the last step."""
_STOP_GRACE = 1.0
"""Seconds from SIGTERM to SIGKILL for the workers, which have nothing to save."""


class ElasticLauncher:
    """Holds the state, the processes and the connections. ``membership`` decides what to do."""

    def __init__(self, settings: ElasticSettings, run: int, events: EventLog, nodes: Path | None) -> None:
        """Start nothing yet.

        Args:
            settings: The command line.
            run: Number of this run, for the events.
            events: The event log.
            nodes: Folder with a folder per node for the pids of its processes.
        """
        self._settings = settings
        self._run = run
        self._events = events
        self._nodes = nodes
        self._situation = ElasticSituation()
        self._queue: asyncio.Queue[LauncherEvent] = asyncio.Queue()
        self._children: dict[WorkerId, WorkerChild] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._writers: dict[WorkerId, asyncio.StreamWriter] = {}
        self._spawned = 0
        self._rendezvous = ""
        self._enough_at = time.monotonic()
        self._called_off_at = 0.0

    async def supervise(self) -> int:
        """Run the job to its end and return the exit code."""
        server = await asyncio.start_server(self._serve_worker, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self._rendezvous = f"{host}:{port}"
        discovery = asyncio.create_task(self._discover(), name="discovery")
        discovery.add_done_callback(lambda _: self._queue.put_nowait(JobEnded(1, "host discovery has ended")))
        try:
            ended = await self._until_ended()
            _log(ended.reason)
            await self._end_workers(_FINISH_SECONDS if ended.code == 0 else 0.0)
        finally:
            discovery.cancel()
            server.close()
        return ended.code

    def interrupt(self, number: signal.Signals) -> None:
        """Exit cleanly because of a signal."""
        self._queue.put_nowait(JobEnded(128 + number, f"ended by {number.name}"))

    async def _until_ended(self) -> JobEnded:
        while True:
            event = await self._next_event()
            ended = self._handle(event) if event else None
            if (ended := ended or self._overdue(time.monotonic())) is not None:
                return ended
            for action in decide(self._situation, self._settings.limits):
                self._carry_out(action)

    async def _next_event(self) -> LauncherEvent | None:
        try:
            async with asyncio.timeout(_TICK):
                return await self._queue.get()
        except TimeoutError:
            return None

    # Events.

    def _handle(self, event: LauncherEvent) -> JobEnded | None:
        match event:
            case JobEnded():
                return event
            case Discovered(hosts):
                self._situation = replace(self._situation, listed=hosts)
            case MessageReceived(worker, message):
                self._handle_message(worker, message)
            case Exited(worker, code):
                return self._handle_exit(worker, code)
        return None

    def _handle_message(self, worker: WorkerId, message: Message) -> None:
        member = self._situation.member(worker)
        if member is None or member.phase is MemberPhase.LEAVING:
            return
        match message:
            case WorkerHello(port=port):
                self._situation = self._situation.changed(replace(member, phase=MemberPhase.READY, port=port))
            case WorkerReady():
                self._situation = self._situation.changed(replace(member, phase=MemberPhase.READY))
                if not self._situation.called_off:
                    # It found the ring broken before we saw a process exit.
                    self._call_off(WorkerBroken(self._situation.epoch))
            case Synced():
                self._situation = self._situation.changed(replace(member, has_state=True))

    def _handle_exit(self, worker: WorkerId, code: int) -> JobEnded | None:
        member = self._situation.member(worker)
        self._children.pop(worker, None)
        self._writers.pop(worker, None)
        self._situation = self._situation.without(worker)
        if member is None or member.phase is MemberPhase.LEAVING:
            return None
        if code == 0:
            return JobEnded(0, f"the worker on {member.host} has finished")
        self._record_failure(member, code)
        return JobEnded(1, "no worker with the job's state is left") if state_is_lost(self._situation) else None

    def _record_failure(self, member: ElasticMember, code: int) -> None:
        _log(f"the worker on {member.host} exited with {code}; its host is blacklisted")
        if member.phase is MemberPhase.IN_RING:
            epoch = self._situation.epoch
            self._events.write(JobEventKind.RING_BROKEN, run=self._run, epoch=epoch, host=member.host)
            self._call_off(WorkerBroken(epoch))
        self._events.write(JobEventKind.HOST_BLACKLISTED, run=self._run, host=member.host)
        self._situation = replace(self._situation, blacklist=self._situation.blacklist | {member.host})

    def _overdue(self, now: float) -> JobEnded | None:
        ring = self._situation.in_phase(MemberPhase.IN_RING)
        limits = self._settings.limits
        if ring or len(chosen_hosts(self._situation, limits)) >= limits.min_workers:
            self._enough_at = now
        elif (waited := now - self._enough_at) > self._settings.below_min_timeout:
            return JobEnded(1, f"too few hosts for {waited:.0f} s")
        if self._situation.called_off and now - self._called_off_at > _STRAGGLER_SECONDS:
            for member in ring:
                self._children[member.worker].signal(signal.SIGKILL)
        return None

    # Actions.

    def _carry_out(self, action: Action) -> None:
        match action:
            case Spawn(host):
                self._spawn(host)
            case Dismiss(worker):
                self._dismiss(worker)
            case CallOff():
                self._call_off(Update(self._situation.epoch))
            case FormRing(order):
                self._form(order)

    def _spawn(self, host: str) -> None:
        self._spawned += 1
        worker = WorkerId(self._spawned)
        child = start_worker(
            self._settings.command,
            self._environment(host, worker),
            None if self._nodes is None else self._nodes / host,
        )
        self._children[worker] = child
        members = (*self._situation.members, ElasticMember(worker, host))
        self._situation = replace(self._situation, members=members)
        watch = asyncio.create_task(self._watch(worker, child), name=f"worker {worker}")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        asyncio.get_running_loop().call_later(_START_SECONDS, self._end_if_starting, worker)

    def _end_if_starting(self, worker: WorkerId) -> None:
        member = self._situation.member(worker)
        if member is not None and member.phase is MemberPhase.STARTING:
            self._children[worker].signal(signal.SIGKILL)

    def _environment(self, host: str, worker: WorkerId) -> dict[str, str]:
        # One thread each, because many workers share this machine's cores and thread pools slow down their start.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        ours = {"HOROVOD_HOSTNAME": host, RENDEZVOUS_VARIABLE: self._rendezvous, WORKER_VARIABLE: str(worker)}
        return {**threads, **os.environ, **ours}

    def _dismiss(self, worker: WorkerId) -> None:
        member = self._situation.member(worker)
        if member is None:
            return
        if worker in self._writers:
            self._send(worker, Leave())
        else:
            self._children[worker].signal(signal.SIGKILL)
        self._situation = self._situation.changed(replace(member, phase=MemberPhase.LEAVING))

    def _call_off(self, message: Update | WorkerBroken) -> None:
        for member in self._situation.in_phase(MemberPhase.IN_RING):
            self._send(member.worker, message)
        self._situation = replace(self._situation, called_off=True)
        self._called_off_at = time.monotonic()

    def _form(self, order: tuple[WorkerId, ...]) -> None:
        self._situation = formed(self._situation, order)
        epoch = self._situation.epoch
        members = [member for worker in order if (member := self._situation.member(worker)) is not None]
        hosts = [member.host for member in members]
        # Written before any of them can apply a step.
        self._events.write(JobEventKind.RING_FORMED, run=self._run, epoch=epoch, hosts=hosts)
        ports = tuple(member.port for member in members)
        for rank, member in enumerate(members):
            self._send(member.worker, WorkerPlace(epoch, rank, ports))
        _log(f"ring {epoch}: {len(members)} workers, rank 0 on {hosts[0]}")

    def _send(self, worker: WorkerId, message: Message) -> None:
        # A broken connection means that the process is exiting, which is handled there.
        if (writer := self._writers.get(worker)) is not None:
            writer.write(encode(message))

    async def _end_workers(self, seconds: float) -> None:
        await self._wait_for_exits(seconds)
        for number, grace in ((signal.SIGTERM, _STOP_GRACE), (signal.SIGKILL, None)):
            for child in self._children.values():
                child.signal(number)
            await self._wait_for_exits(grace)

    async def _wait_for_exits(self, seconds: float | None) -> None:
        if self._watches:
            await asyncio.wait(self._watches, timeout=seconds)

    # Sources of events.

    async def _discover(self) -> None:
        while True:
            begun = time.monotonic()
            try:
                answer = await output_of(self._settings.discovery, _DISCOVERY_LIMIT)
            except (OSError, subprocess.CalledProcessError) as error:
                self._queue.put_nowait(JobEnded(1, f"host discovery failed: {error}"))
                return
            self._queue.put_nowait(Discovered(parse_hosts(answer)))
            await asyncio.sleep(self._settings.discovery_seconds - (time.monotonic() - begun))

    async def _watch(self, worker: WorkerId, child: WorkerChild) -> None:
        self._queue.put_nowait(Exited(worker, await child.ended()))

    async def _serve_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, MalformedMessageError, ValueError):
            hello = decode(await reader.readline())
            if isinstance(hello, WorkerHello):
                worker = WorkerId(hello.worker)
                self._writers[worker] = writer
                self._queue.put_nowait(MessageReceived(worker, hello))
                while line := await reader.readline():
                    self._queue.put_nowait(MessageReceived(worker, decode(line)))
        writer.close()


async def _main(settings: ElasticSettings) -> int:
    state = os.environ.get("SIM_STATE")
    nodes = Path(state) / "nodes" if state else None
    run = int(os.environ.get("KUBEAI_RUN", "1"))
    with EventLog.from_environment("launcher") as events:
        launcher = ElasticLauncher(settings, run, events, nodes)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, launcher.interrupt, number)
        code = await launcher.supervise()
        events.write(JobEventKind.RUN_ENDED, run=run, code=code)
        return code


def _log(line: str) -> None:
    sys.stderr.write(f"launcher: {line}\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(parse_arguments(sys.argv[1:]))))
