"""Holds the stores of rounds: for each line of its input it opens one and prints its port."""

import sys

from torch.distributed import TCPStore

stores = []
for _ in sys.stdin:
    stores.append(TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False))  # noqa: FBT003 - the name differs by version
    sys.stdout.write(f"{stores[-1].port}\n")
    sys.stdout.flush()
