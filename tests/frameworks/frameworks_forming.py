"""Forms the group of a round with another process, as one that may have failed to form that of the round before.

frameworks_forming.py PORT RANK yes|no
"""

import os
import sys

import torch.distributed as dist
from kubeai.torch.decisions import NotFormed, WorkerRound
from kubeai.torch.group import FormedGroup, form_group, leave_group
from kubeai.torch.ranks_in_store import await_all
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import connect

_STEP = 7
_RANKS = 2
_SECONDS = 60.0


def _formed(port: int, rank: int, number: int, timeout: float) -> FormedGroup:
    entered = WorkerRound(number, True, rank, _RANKS, "127.0.0.1", port)  # noqa: FBT003 - the fields of a round
    return form_group(
        entered, 0, _STEP, early=None, backend="gloo", timeout=timeout, seconds=_SECONDS, is_over=lambda: False
    )


def _main(port: int, rank: int, has_failed: str) -> None:
    os.environ["LOCAL_RANK"] = "0"
    if has_failed == "yes":
        # The other one has come, and has gone on to the next round.
        dist.PrefixStore("kubeai/1/", connect(RoundStoreAddress("127.0.0.1", port))).add("arrived", 1)
        try:
            _formed(port, rank, 1, timeout=1)
        except NotFormed:
            sys.stdout.write("not formed\n")
    formed = _formed(port, rank, 2, timeout=15)
    sys.stdout.write(f"{formed.steps}\n")
    # A rank that leaves closes its connections, and the other rank may not have formed its group yet.
    await_all(formed.store, "formed", _RANKS, seconds=_SECONDS, is_over=lambda: False)
    leave_group(None)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
