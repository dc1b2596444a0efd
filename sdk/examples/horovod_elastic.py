"""Elastic Horovod training: a host that is removed from the list leaves at the next commit, without a stop.

    kubeai-run ... -- horovodrun --host-discovery-script kubeai-discover-hosts ... python horovod_elastic.py CHECKPOINT

Without Horovod it runs as one process, to show where to call the SDK.
"""

import sys
import time
from pathlib import Path

import kubeai.elastic as kubeai

try:
    import horovod.torch as hvd
except ImportError:
    hvd = None


class LocalState:
    """A replacement for Horovod's elastic state without Horovod."""

    def __init__(self, step: int) -> None:
        self.step = step

    def commit(self) -> None:
        """Save this state for the next rendezvous."""


def train(state: LocalState, checkpoint: Path) -> None:
    """Continue from the last commit after each rendezvous."""
    while True:
        if not kubeai.check_alive():  # below the minimum the whole job stops: rank 0 is told and saves
            if hvd is None or hvd.rank() == 0:
                checkpoint.write_text(str(state.step))
                kubeai.checkpoint_saved(state.step)
            sys.exit(-1)  # never 0: Horovod would end the whole job as finished
        time.sleep(0.01)  # one step
        state.step += 1
        state.commit()  # each step: it also checks for changed hosts


def main(checkpoint: Path) -> None:
    """Train."""
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if hvd is None:
        kubeai.init(rank=0)
        print("training alone", flush=True)
        train(LocalState(step), checkpoint)
        return
    hvd.init()
    kubeai.init()  # after Horovod's own init, once; the SDK reads the rank again after each rendezvous
    hvd.elastic.run(train)(hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=step), checkpoint)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
