"""The collectives of a worker by Horovod's compiled core: gloo, over torch's tensors."""

import time
from typing import Any

import horovod.torch as hvd  # type: ignore[import-not-found]  # It has its own environment.
import numpy as np
import torch  # type: ignore[import-not-found,unused-ignore]  # As well.
from numpy.typing import NDArray

from simulator.events import EventLog, JobEventKind


class GlooCore:
    """This process's part in the job; the methods are those of `horovod_core.Core`.

    Args:
        run: The run of the launcher.
        host: The name of this process's host.
        events: Where rank 0 writes each ring.
        reset_seconds: How much longer than necessary this process takes to leave a ring.
    """

    def __init__(self, run: int, host: str, events: EventLog, reset_seconds: float) -> None:
        self._run = run
        self._host = host
        self._events = events
        self._reset_seconds = reset_seconds
        self._epoch = 0
        hvd.init()
        self._joined()

    def rank(self) -> int:
        return int(hvd.rank())

    def size(self) -> int:
        return int(hvd.size())

    def epoch(self) -> int:
        """Which ring of this run the present one is, counted from 1."""
        return self._epoch

    def reset(self) -> None:
        """Leave the ring and take the driver's place in the next; does not return in a worker that is left out."""
        time.sleep(self._reset_seconds)
        # As `hvd.elastic.run` does.
        hvd.shutdown()
        hvd.init()
        self._joined()

    def allreduce(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over all ranks; raises HorovodInternalError."""
        summed: NDArray[np.int64] = hvd.allreduce(torch.from_numpy(values), op=hvd.Sum, name="gradient").numpy()
        return summed

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, at every rank; raises HorovodInternalError."""
        return hvd.broadcast_object(value, root_rank=0)

    def _joined(self) -> None:
        # Rank 0 is the oldest, so it has been in every ring so far; who has just come has not.
        members = hvd.allgather_object((self._host, self._epoch), name="members")
        self._epoch = members[0][1] + 1
        if self.rank() == 0:
            hosts = [host for host, _ in members]
            self._events.write(JobEventKind.RING_FORMED, run=self._run, epoch=self._epoch, hosts=hosts)
