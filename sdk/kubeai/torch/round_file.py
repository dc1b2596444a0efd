"""The training process's side of the files that its elastic agent and its workers share.

`kubeai.torchrun.workers` is the agent's side, and says what is in them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubeai.elastic.identity import write_atomically
from kubeai.torchrun.workers import DIRECTORY, JOINS, ROUND

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Round:
    """A round from the point of view of one of its members.

    Attributes:
        number: Grows with each round.
        in_process: Whether running processes enter it without a restart.
        base_rank: The rank of this member's first process.
        world_size: The number of processes of all members.
        address: Where its store is.
        port: The store's port.
    """

    number: int
    in_process: bool
    base_rank: int
    world_size: int
    address: str
    port: int


class RoundFile:
    """The files of one training process.

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
        self._path = directory / "round.json"
        self._own = directory / f"worker-{local_rank}.json"
        self._seen: tuple[int, int] | None = None
        self._newest: Round | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> RoundFile | None:
        """Return the files that the elastic agent has named, None under another rendezvous backend."""
        directory = environ.get(DIRECTORY)
        if not directory:
            return None
        local_rank, started_in = (int(environ.get(name, "0")) for name in ("LOCAL_RANK", ROUND))
        return cls(Path(directory), local_rank, started_in, joins=environ.get(JOINS) == "1")

    def newest(self) -> Round | None:
        """Return the newest round of this member; the last known one while the file is missing or malformed.

        It costs one system call while the file is the same.
        """
        try:
            found = self._path.stat()
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._seen:
                self._newest = _parse(json.loads(self._path.read_text(encoding="utf-8")))
                self._seen = version
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return self._newest

    def say(self, number: int, *, started: bool, lost: bool = False) -> None:
        """Tell the agent in which round this process trains, and whether it is ready to join one. Raises OSError.

        `lost`: it has lost another rank of that round, and waits for the next one.
        """
        said = {"pid": os.getpid(), "started": started, "round": number, "lost": lost}
        write_atomically(self._own, json.dumps(said))


def _parse(fields: Mapping[str, Any]) -> Round:
    store = fields["store"]
    return Round(
        int(fields["number"]),
        bool(fields["in_process"]),
        int(fields["base_rank"]),
        int(fields["world_size"]),
        str(store["address"]),
        int(store["port"]),
    )
