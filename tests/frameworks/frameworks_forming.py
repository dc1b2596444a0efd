"""Forms the group of a round with another process, as one that may have failed to form that of the round before.

frameworks_forming.py PORT RANK yes|no
"""

import os
import sys

import torch.distributed as dist
from kubeai.torch.decisions import NotFormed, WorkerRound
from kubeai.torch.group import FormedGroup, form_group, leave_group
from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import connect

_STEP = 7


def _formed(port: int, rank: int, number: int, timeout: float) -> FormedGroup:
    entered = WorkerRound(number, True, rank, 2, "127.0.0.1", port)  # noqa: FBT003 - the fields of a round
    return form_group(entered, 0, _STEP, early=None, backend="gloo", timeout=timeout, seconds=60, is_over=lambda: False)


def _main(port: int, rank: int, has_failed: str) -> None:
    os.environ["LOCAL_RANK"] = "0"
    if has_failed == "yes":
        # The other one has come, and has gone on to the next round.
        dist.PrefixStore("kubeai/1/", connect(RoundStoreAddress("127.0.0.1", port))).add("arrived", 1)
        try:
            _formed(port, rank, 1, timeout=1)
        except NotFormed:
            sys.stdout.write("not formed\n")
    sys.stdout.write(f"{_formed(port, rank, 2, timeout=15).steps}\n")
    leave_group(None)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
