"""Defines what a script decides: how long its processes wait, and how often parts of the state are copied.

Nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

_MAX_HANDING = 10.0
"""Processes that have not entered a round 20 s after its decision are restarted, and those that left are killed."""
_PART_OF_THE_NETWORK = 0.5
"""With `share`, copies are sent for at most this part of the time."""
_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class Limits:
    """How long processes wait, in seconds.

    Attributes:
        collective: For the others in a collective. A frozen host is noticed after this time only.
        forming: For all processes of a new round.
        holding: At an agreed step for the next round. Then training goes on.
        lost: For the next round after a collective has failed. Then the process fails, and is restarted.
        handing: For ranks to hand a sharded state over, 10 at most. If by a measurement they would need more than half
            of it, the state goes through a checkpoint. 0: always.

    Raises:
        ValueError: `handing` is longer than that.
    """

    collective: float = 30.0
    forming: float = 20.0
    holding: float = 60.0
    lost: float = 60.0
    handing: float = 10.0

    def __post_init__(self) -> None:
        """Check the limits."""
        if self.handing > _MAX_HANDING:
            raise ValueError(f"handing is {self.handing:g} s, at most {_MAX_HANDING:g} s")


@dataclass(frozen=True)
class PeerCopies:
    """Says after how many steps each rank's part is copied to another host.

    Attributes:
        every: The number of steps from one copy to the next; None for what `share` allows.
        share: The part of the training time that copies may hold steps up.
        directory: Of each host, in its memory, such as `/dev/shm`: copies are there, and outlive the processes of the
            host. None: they are in the memory of the processes.

    Raises:
        ValueError: `every` is below 1, or `share` is not above 0 and at most 1.
    """

    every: int | None = None
    share: float = 0.01
    directory: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.every is not None and self.every < 1:
            raise ValueError(f"every is {self.every}, at least 1")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share:g}, above 0 and at most 1")

    def steps_between(self, holding: float, sending: float, step_seconds: float | None) -> int:
        """Return after how many steps the next copy is taken.

        Args:
            holding: For how long a copy held up a step, in seconds.
            sending: How long it took to send.
            step_seconds: How long a step takes; None if it is not known yet.
        """
        if self.every is not None:
            return self.every
        if not step_seconds:
            return 1
        seconds = max(holding / self.share, sending / _PART_OF_THE_NETWORK)
        return min(_MOST_STEPS, max(1, math.ceil(seconds / step_seconds)))
