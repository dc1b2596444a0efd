"""All ranks of a round agree on how the next one gets their state, while they stand at a step.

They are told of the next round at different times, and those that leave not at all. The store of the present round
takes one answer.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from .decisions import FIRST_PAUSE, PAUSE_FOR_EACH_RANK, NotFormed, is_newer, read_hosts

if TYPE_CHECKING:
    from .decisions import RoundFile, RoundHost, WorkerRound

PATIENCE_SECONDS = 5.0
"""The next round is decided some 0.1 s after all ranks hold. One without a next round may be about to be restarted."""
_FILE = "file"


def agreed_hosts(
    store: Any, step: int, rounds: RoundFile, present: WorkerRound, *, patience: float = PATIENCE_SECONDS
) -> tuple[RoundHost, ...] | None:
    """Return the members of the next round, the same in every rank of the present one, or None in every rank.

    None means that a rank has waited in vain. The state then goes through a checkpoint.

    Args:
        store: Of the present round.
        step: At which all ranks stand.
        rounds: Where this process is told of the next round, unless it leaves.
        present: The present round.
        patience: How long a rank waits, in seconds.

    Raises:
        NotFormed: The answer in the store is malformed.
        RuntimeError: The store cannot be reached.
    """
    key, end, pause = f"follows/{step}", time.monotonic() + patience, FIRST_PAUSE
    while True:
        newest = rounds.newest()
        if newest is not None and is_newer(newest, present.number):
            own = json.dumps([vars(host) for host in newest.hosts])
        else:
            own = _FILE if time.monotonic() > end else ""
        if own or store.check([key]):
            # The first answer stays.
            return _read(store.compare_set(key, "", own).decode())
        time.sleep(pause)  # the training thread stands still here anyway, and neither store nor file wakes it
        pause = min(2 * pause, PAUSE_FOR_EACH_RANK * present.world_size)


def _read(answer: str) -> tuple[RoundHost, ...] | None:
    try:
        return None if answer == _FILE else read_hosts(json.loads(answer))
    except (ValueError, TypeError, KeyError) as error:
        raise NotFormed(f"the members of the next round are malformed: {error}") from error
