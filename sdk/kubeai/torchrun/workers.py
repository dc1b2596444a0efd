"""The files through which an elastic agent and its own workers talk, in a private directory.

The agent replaces `round.json` at each round, and `following.json` whenever another one may follow. A worker that can
join or regroup in process replaces `worker-LOCAL_RANK.json`: `{"pid", "started", "round", "lost"}`.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubeai.elastic.identity import write_atomically

if TYPE_CHECKING:
    from .member import FollowingRound, RendezvousRound

_COARSE_NANOSECONDS = 1_000_000_000

DIRECTORY = "KUBEAI_RENDEZVOUS_DIR"
ROUND = "KUBEAI_RENDEZVOUS_ROUND"
JOINS = "KUBEAI_RENDEZVOUS_JOINS"


@dataclass(frozen=True)
class WorkersProgress:
    """The progress that the workers of this agent have reported, combined.

    Attributes:
        started: They wait to join.
        ready: The newest round in which all of them train.
        lost: The round of which all of them have lost a rank, so that they wait for the next one; 0 for none.
    """

    started: bool = False
    ready: int = 0
    lost: int = 0


@dataclass(eq=False)
class Workers:
    """A new directory for the files of one agent and its workers, of which there are `processes`."""

    processes: int
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="kubeai-rendezvous-")))
    _seen: tuple[int, WorkersProgress] | None = None

    def publish(self, entered: RendezvousRound, index: int) -> None:
        """Replace `round.json` by a round that has a store and whose member `index` is this one. Raises OSError."""
        write_atomically(self.directory / "round.json", json.dumps(_fields(entered, index)))

    def foretell(self, following: FollowingRound, index: int) -> None:
        """Replace `following.json` by a round that may follow, in the same way. Raises OSError."""
        content = {**_fields(following.round, index), "epoch": following.epoch}
        write_atomically(self.directory / "following.json", json.dumps(content))

    def forget(self) -> None:
        """Remove the files of earlier workers. Call it before new workers start."""
        for file in self.directory.glob("worker-*.json"):
            with contextlib.suppress(OSError):
                file.unlink()

    def environment(self, number: int, *, joins: bool) -> dict[str, str]:
        """Return the variables of workers that start in round `number`."""
        return {DIRECTORY: str(self.directory), ROUND: str(number), **({JOINS: "1"} if joins else {})}

    def progress(self) -> WorkersProgress:
        """Return the combined progress of all workers; an empty one while a worker has not written its file.

        The agent asks 20 times a second. Files are replaced, so nothing is new while the directory is as it was. Its
        time stamp has steps of a few milliseconds, so one of the last second may stand for several changes.
        """
        try:
            changed_at = self.directory.stat().st_mtime_ns
        except OSError:
            return WorkersProgress()
        if self._seen is None or self._seen[0] != changed_at or time.time_ns() < changed_at + _COARSE_NANOSECONDS:
            self._seen = changed_at, self._read()
        return self._seen[1]

    def _read(self) -> WorkersProgress:
        try:
            said = [
                json.loads((self.directory / f"worker-{rank}.json").read_text(encoding="utf-8"))
                for rank in range(self.processes)
            ]
            lost = min(int(one["round"]) if one.get("lost") else 0 for one in said)
            return WorkersProgress(all(one["started"] for one in said), min(int(one["round"]) for one in said), lost)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return WorkersProgress()


def _fields(entered: RendezvousRound, index: int) -> dict[str, Any]:
    members = [{"host": one.host, "address": one.address, "processes": one.processes} for one in entered.members]
    return {
        "number": entered.number,
        "in_process": entered.in_process,
        "node": index,
        "base_rank": sum(one.processes for one in entered.members[:index]),
        "world_size": sum(one.processes for one in entered.members),
        "members": members,
        "store": None if entered.store is None else vars(entered.store),
    }
