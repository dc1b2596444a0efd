"""Holds what the processes of a job need: for each line of its input it opens the store of a round and prints its port.

    … frameworks_store.py [SCRIPT]

With a script, it first has a template made, of which workers that run the script are forks. That ends with it.
"""

import os
import sys

from kubeai.warm.prepare import PROGRAM, prepare
from torch.distributed import TCPStore

_SECONDS = 120.0
_KEEP = 1.0

if len(sys.argv) > 1:
    assert prepare([PROGRAM, sys.argv[1]], os.environ, _SECONDS, keep=_KEEP)
stores = []
for _ in sys.stdin:
    stores.append(TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False))  # noqa: FBT003 - the name differs by version
    sys.stdout.write(f"{stores[-1].port}\n")
    sys.stdout.flush()
