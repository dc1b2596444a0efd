"""Decides what a training process does between two rounds.

Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Generic, NamedTuple, Sequence, Tuple, TypeVar

from kubeai.elastic.elastic_agent import is_of_collective
from kubeai.elastic.identity import write_atomically
from kubeai.torchrun.workers import DIRECTORY, JOINS, ROUND

if TYPE_CHECKING:
    from collections.abc import Mapping


T = TypeVar("T")

FIRST_PAUSE, PAUSE_FOR_EACH_RANK = 0.001, 0.0005
"""Seconds between looks at a round's store. The longest pause grows with the ranks, so it has the same load."""


@dataclass(frozen=True)
class RoundHost:
    """Names the address of one elastic agent of a round, which no other one has, and says how many processes it has."""

    address: str
    processes: int


@dataclass(frozen=True)
class WorkerRound:
    """A round from the point of view of one of its members.

    Attributes:
        number: Grows with each round.
        in_process: Whether running processes enter it without a restart.
        base_rank: The rank of this member's first process.
        world_size: The number of processes of all members.
        address: Where its store is.
        port: The store's port.
        hosts: The members in the order of their ranks.
    """

    number: int
    in_process: bool
    base_rank: int
    world_size: int
    address: str
    port: int
    hosts: Tuple[RoundHost, ...] = ()  # noqa: UP006 - Python 3.8


class ForetoldRound(NamedTuple):
    """A round that begins after the next pause if nothing changes until then.

    `epoch` numbers the attempts to agree on that pause.
    """

    epoch: int
    round: WorkerRound


@dataclass(frozen=True)
class FormedRound:
    """A round whose process group is formed.

    Attributes:
        number: Of the round.
        steps: For each rank the number of steps that it has finished, or `NO_STATE`.
        processes: The number of ranks of each host, in the order of the ranks; none where there are no rounds.
    """

    number: int
    steps: Tuple[int, ...]  # noqa: UP006 - Python 3.8
    processes: Tuple[int, ...]  # noqa: UP006 - Python 3.8


def read_hosts(members: Any) -> tuple[RoundHost, ...]:
    """Return the members of a round from JSON. Raises KeyError, TypeError or ValueError if it is malformed."""
    return tuple(RoundHost(str(each["address"]), int(each["processes"])) for each in members)


def _worker_round(fields: Any) -> WorkerRound:
    return WorkerRound(
        int(fields["number"]),
        bool(fields["in_process"]),
        int(fields["base_rank"]),
        int(fields["world_size"]),
        str(fields["store"]["address"]),
        int(fields["store"]["port"]),
        read_hosts(fields["members"]),
    )


class _ReadFile(Generic[T]):
    """A JSON file that is replaced as a whole. A look costs one system call while the file is the same."""

    def __init__(self, path: Path, parse: Callable[[Any], T]) -> None:
        self._path = path
        self._parse = parse
        self._seen: tuple[int, int] | None = None
        self._value: T | None = None

    def value(self) -> T | None:
        """Return what is in it; the last known value while it is missing or malformed."""
        try:
            found = self._path.stat()
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._seen:
                self._value = self._parse(json.loads(self._path.read_text(encoding="utf-8")))
                self._seen = version
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return self._value


class RoundFile:
    """The files that a training process shares with its elastic agent.

    `kubeai.torchrun.workers` is the agent's side, and says what is in them.

    Args:
        directory: That of the agent's workers.
        local_rank: The number of this process among the agent's workers.
        started_in: The round that the process was started in.
        joins: Whether the process was started outside that round, to join a later one.
    """

    def __init__(self, directory: Path, local_rank: int, started_in: int, *, joins: bool) -> None:
        self.local_rank = local_rank
        self.started_in = started_in
        self.joins = joins
        self._own = directory / f"worker-{local_rank}.json"
        self._newest = _ReadFile(directory / "round.json", _worker_round)
        self._following = _ReadFile(
            directory / "following.json", lambda fields: ForetoldRound(int(fields["epoch"]), _worker_round(fields))
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> RoundFile | None:
        """Return the files that the elastic agent has named, None under another rendezvous backend."""
        directory = environ.get(DIRECTORY)
        if not directory:
            return None
        local_rank, started_in = (int(environ.get(name, "0")) for name in ("LOCAL_RANK", ROUND))
        return cls(Path(directory), local_rank, started_in, joins=environ.get(JOINS) == "1")

    def newest(self) -> WorkerRound | None:
        """Return the newest round of this member; the last known one while the file is missing or malformed."""
        return self._newest.value()

    def following(self) -> ForetoldRound | None:
        """Return the round of this member that may follow, in the same way; it may have been foretold long ago."""
        return self._following.value()

    def say(self, number: int, *, started: bool, lost: bool = False) -> None:
        """Tell the agent in which round this process trains, and whether it is ready to join one. Raises OSError.

        `lost`: it has lost another rank of that round, and waits for the next one.
        """
        said = {"pid": os.getpid(), "started": started, "round": number, "lost": lost}
        write_atomically(self._own, json.dumps(said))


class NotFormed(RuntimeError):  # noqa: N818 - the name describes the group
    """The process group of a round was not formed: its store is gone, a process is missing, or a newer round came."""


NO_STATE = -1
"""The step of a process that has trained nothing yet."""


class Move(Enum):
    """The next thing that a process does."""

    ENTER = "enter the newest round"
    WAIT = "wait for a newer round"
    GO_ON = "go on in the present round"
    GIVE_UP = "fail, so that the elastic agents restart their workers"


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an error of a step, or its cause, says that another rank is gone or does not answer.

    That is a failed collective, for which torch has a class of its own only with NCCL: gloo raises RuntimeErrors that
    name its source file.
    """
    causes = (error, error.__cause__)
    return any(isinstance(each, NotFormed) or (each is not None and is_of_collective(each)) for each in causes)


def is_newer(newest: WorkerRound | None, own: int) -> bool:
    """Return whether there is a round after `own` that processes enter without a restart."""
    return newest is not None and newest.number > own and newest.in_process


def next_move(newest: WorkerRound | None, own: int, *, expired: bool, is_whole: bool) -> Move:
    """Return the next move of a process that has stopped training in round `own`.

    Args:
        newest: The newest round that this process's member is part of.
        own: The round it is in.
        expired: Whether it has waited long enough.
        is_whole: Whether its process group still works. A round that was announced and never came is then gone on with.
    """
    if is_newer(newest, own):
        return Move.ENTER
    if not expired:
        return Move.WAIT
    is_ended = newest is not None and newest.number > own  # its agent is about to stop this process
    return Move.GO_ON if is_whole and not is_ended else Move.GIVE_UP


def processes_of_hosts(hosts: Sequence[int]) -> tuple[int, ...]:
    """Return the number of ranks of each host, in the order of the ranks; those of a host follow one another.

    Args:
        hosts: For each rank the number of its host.
    """
    return tuple(len(list(ranks)) for _, ranks in groupby(hosts))


def source_of(steps: Sequence[int]) -> int | None:
    """Return the rank whose state all ranks of a round take, None if they all have the same.

    It is the first of those with the most finished steps.

    Args:
        steps: For each rank the number of its finished steps, or `NO_STATE`.
    """
    most = max(steps)
    return None if min(steps) == most else list(steps).index(most)
