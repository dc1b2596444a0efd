"""The rendezvous handler of torchrun: enters the rounds that the supervisor decides, and parks between them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import math
import os
import socket
import sys
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from torch.distributed.elastic.rendezvous import (  # type: ignore[import-not-found,unused-ignore]
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from kubeai.elastic import identity, threads
from kubeai.elastic.threads import StderrLog
from kubeai.warm.place import VARIABLE as WARM_DIRECTORY
from kubeai.warm.prepare import prepare

from . import guard, member, stores
from .link import MemberLink
from .member import Enter, Exit, Membership, MemberState, StartToJoin
from .peers import PeerLink
from .workers import JOINS, Workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .member import FollowingRound, RendezvousRound

_SLICE_SECONDS = 0.25  # between two looks at the round a signal is handled
_PROGRESS_SECONDS = 0.05
_SETTLE_SECONDS = 0.5
_IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"
_PREPARE_SECONDS = 120.0
_AWAY_SECONDS = 10.0  # A supervisor that is restarted is back before


class UnknownProcesses(ValueError):  # noqa: N818 - the name describes what is missing
    """The number of workers for each host is not known."""


def processes_of(parameters: Any) -> int:
    """Return the number of workers of this agent, from `processes` of --rdzv-conf or from torchrun's options.

    Raises:
        UnknownProcesses: The agent was not started by torchrun, and --rdzv-conf does not say it.
    """
    configured = parameters.get("processes")
    if configured is not None:
        text = str(configured)
        if not text.isdecimal() or int(text) < 1:
            raise UnknownProcesses(f"processes={text} in --rdzv-conf is no number of workers")
        return int(text)
    from torch.distributed import run  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            options = run.parse_args(sys.argv[1:])
    except SystemExit as error:
        raise UnknownProcesses("add processes=N, the number of workers for each host, to --rdzv-conf") from error
    return int(run.determine_local_world_size(options.nproc_per_node))


def program_of_workers(environ: Mapping[str, str]) -> list[str]:
    """Return the command line of this agent's workers, from torchrun's options; [] if torchrun did not start it."""
    from torch.distributed import run  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            options = run.parse_args(sys.argv[1:])
    except SystemExit:
        return []
    program = [options.training_script, *options.training_script_args]
    if options.no_python:
        return program
    return [environ.get("PYTHON_EXEC", sys.executable), "-u", *(["-m"] if options.module else []), *program]


def address_of(parameters: Any, supervisor: str | None) -> str:
    """Return --local-addr, or the address of the interface towards the supervisor, or the name of this host."""
    if parameters.local_addr:
        return str(parameters.local_addr)
    with contextlib.suppress(OSError, ValueError):
        where = urlsplit(supervisor or "")
        for family, _, _, _, target in socket.getaddrinfo(where.hostname, where.port or 443, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # sends nothing
                return str(probe.getsockname()[0])
    return socket.getfqdn()


class KubeaiRendezvous(RendezvousHandler):  # type: ignore[misc,unused-ignore]
    """One member. `parameters` are torch's RendezvousParameters.

    Raises:
        UnknownProcesses: See `processes_of`.
        ValueError: `away_seconds` of --rdzv-conf is no number of seconds.
    """

    def __init__(self, parameters: Any) -> None:
        self._run_id = str(parameters.run_id)
        directory = identity.directory()
        own = identity.read(directory)
        self._host = address_of(parameters, None if own is None else own.address)
        self._stderr = StderrLog()
        processes = processes_of(parameters)
        # How long the supervisor is away before members form rounds without it.
        away_seconds = float(parameters.get("away_seconds", _AWAY_SECONDS))
        if not 0 < away_seconds < math.inf:
            raise ValueError(f"away_seconds={away_seconds} in --rdzv-conf is no number of seconds")
        self._membership = Membership(MemberState(uuid.uuid4().hex, processes, self._host))
        self._peers = PeerLink(
            self._host,
            self._membership,
            least=parameters.min_nodes,
            away_seconds=away_seconds,
            stderr=self._stderr,
        )
        self._membership.change(lambda state: replace(state, address=self._peers.address))
        self._workers = Workers(processes)
        guard.start(self._workers.directory)
        self._prepare()
        self._stores = stores.RoundStores()
        self._base: RendezvousRound | None = None  # the last round entered with new workers
        self._published = 0
        self._foretold: FollowingRound | None = None
        self._has_ended = False
        self._is_ending = threading.Event()
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self._regrouping = threading.Lock()
        self._is_identical = os.environ.get(_IDENTICAL)
        self._link = MemberLink(directory, self._membership, self._regroup, self._stderr)
        threads.start("rendezvous-workers", self._watch_workers, self._stderr, closed=self._closed)

    def _prepare(self) -> None:
        """Let what the workers import be imported, if they start warm, before other hosts wait for them."""
        os.environ[WARM_DIRECTORY] = str(self._workers.directory)
        # With the directory, by which the guard knows what an agent that was killed has left.
        environment = {**os.environ, **self._workers.environment(0, joins=False)}
        prepare(program_of_workers(os.environ), environment, _PREPARE_SECONDS)

    @property
    def use_agent_store(self) -> bool:
        """The workers are clients of the round's store, so no port can be taken by another process meanwhile."""
        return True

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return "kubeai"

    def get_run_id(self) -> str:
        """Return the value of --rdzv-id."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until this member is part of a newer round, or starts to join one, and return its place.

        Raises:
            SystemExit: The job has ended, or a later run has begun.
        """
        self._membership.wait()
        while True:
            step = self._membership.next_step(_SLICE_SECONDS)
            if step is None:
                self._peers.look()
            if isinstance(step, Exit):
                raise SystemExit(step.code)
            if isinstance(step, StartToJoin):
                return self._start_to_join()
            info = self._enter(step) if isinstance(step, Enter) else None
            if info is not None:
                return info

    def num_nodes_waiting(self) -> int:
        """Return 1 if the workers must be stopped for a newer round, else 0."""
        return int(self._membership.must_rejoin)

    def is_closed(self) -> bool:
        """Return False: the supervisor alone ends a job."""
        return False

    def set_closed(self) -> None:
        """Do nothing: the supervisor alone ends a job."""

    def shutdown(self) -> bool:
        """Record that this agent ends. The job goes on.

        torch calls it up to three times. Only during the last call of a failed agent does an exception pass, so the
        supervisor is told a moment later.
        """
        self._has_ended = sys.exc_info()[0] is None
        if not self._is_ending.is_set():
            self._is_ending.set()
            closing = threading.Timer(_SETTLE_SECONDS, self._close)
            closing.daemon = True
            closing.start()
            atexit.register(self._close)
        return True

    def _close(self) -> None:
        """Tell the supervisor, and disconnect."""
        with self._closing:
            self._membership.change(lambda state: replace(state, ended=self._has_ended))
            self._link.close()
            self._peers.close()
            self._closed.set()

    def _enter(self, step: Enter) -> RendezvousInfo | None:
        """Enter a round with new workers. Returns None if its store cannot be reached."""
        entered = step.round
        index = entered.index_of(self._membership.state.member) or 0
        try:
            if index == 0:
                store, where = stores.open_store(self._host)
            elif entered.store is None:
                raise stores.CannotReach("it is not open")  # noqa: TRY301 - as a store that does not answer
            else:
                store, where = stores.connect(entered.store), entered.store
        except stores.CannotReach as error:
            self._stderr.once(f"store {entered.number}", f"round {entered.number} has no store: {error}")
            self._membership.change(lambda state: replace(state, unreachable=entered.number))
            return None
        entered = replace(entered, store=where)
        self._stores = stores.RoundStores(store)
        self._base = entered
        self._workers.forget()
        self._workers.publish(entered, index)
        self._published = entered.number
        is_uniform = len({one.processes for one in entered.members}) == 1
        self._set_environment(entered.number, joins=False, identical=is_uniform)
        self._membership.change(lambda state: _in_round(state, entered))
        size = len(entered.members)
        self._stderr.once(f"round {entered.number}", f"round {entered.number}: member {index} of {size}")
        return RendezvousInfo(store, index, size, RendezvousStoreInfo(where.address, where.port))

    def _start_to_join(self) -> RendezvousInfo:
        """Start workers on a store of their own; they join a later round in process."""
        line = self._membership.line
        store, where = stores.open_store(self._host)
        self._stores.alone = store
        self._base = None
        self._workers.forget()
        self._set_environment(line.wanted if line else 0, joins=True, identical=True)
        self._membership.change(member.start_to_join)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(where.address, where.port))

    def _regroup(self) -> None:
        """Tell the workers of a round that they enter in process, or of one that may follow.

        Runs after each line, in the link's thread, and after members have formed a round, in another one.
        """
        with self._regrouping:
            self._foretell()
            known = self._membership.state.known
            if known is None or not known.in_process or known.number <= self._published:
                return
            index = known.index_of(self._membership.state.member) or 0
            if index == 0:
                known = replace(known, store=self._stores.regroup(known.number, self._host))
            if known.store is None:
                return
            entered, base = known, self._base
            self._workers.publish(entered, index)
            self._published = entered.number
            self._membership.change(lambda state: _in_round(state, entered))
            if base is None or base.store is None:
                return
            # Let no agent wait at its end for members that have left in process.
            left = [index for index, one in enumerate(base.members) if entered.index_of(one.member) is None]
            if left:
                count_out = functools.partial(stores.count_out, base.store, left, len(base.members))
                threads.start("rendezvous-left", count_out, self._stderr, closed=self._closed)

    def _foretell(self) -> None:
        """Tell the workers of the round that may follow, once its store is open. Its first member opens it."""
        line = self._membership.line
        following = None if line is None else line.following
        if following is None or following == self._foretold:
            return
        index = following.round.index_of(self._membership.state.member) or 0
        if index == 0:
            number = following.round.number
            where = self._stores.open_following(number, self._host)
            self._membership.change(lambda state: replace(state, following_store=(number, where)))
            following = replace(following, round=replace(following.round, store=where))
        if following.round.store is not None and following != self._foretold:
            self._workers.foretell(following, index)
            self._foretold = following

    def _set_environment(self, number: int, *, joins: bool, identical: bool) -> None:
        """Set the environment that the workers inherit.

        With equal numbers of workers, agents need not exchange the numbers.
        """
        os.environ.pop(JOINS, None)
        os.environ.update(self._workers.environment(number, joins=joins))
        if self._is_identical is None:
            os.environ[_IDENTICAL] = str(int(identical))

    def _watch_workers(self) -> None:
        """Report the workers' progress. While the supervisor is away, look for the round that they wait for."""

        def with_progress(state: MemberState) -> MemberState:
            if state.waits:
                return state
            progress = self._workers.progress()
            stranded = state.round > 0 and progress.lost == state.round
            ready = max(progress.ready, state.ready)
            return replace(state, started=progress.started, ready=ready, stranded=stranded)

        while not self._closed.wait(_PROGRESS_SECONDS):
            self._membership.change(with_progress)
            if self._membership.state.stranded:
                self._peers.look()
                self._regroup()


def _in_round(state: MemberState, entered: RendezvousRound) -> MemberState:
    holds = entered.index_of(state.member) == 0 and entered.store is not None
    store = (entered.number, entered.store) if holds and entered.store is not None else None
    return replace(member.enter(state, entered), store=store)
