"""Serves torch's TCPStore for the backend `c10d` until it is killed: torchrun_store.py FILE-FOR-ITS-PORT."""

import signal
import sys
from pathlib import Path

from torch.distributed import TCPStore

if __name__ == "__main__":
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    draft = Path(sys.argv[1]).with_suffix(".draft")
    draft.write_text(str(store.port), encoding="ascii")
    draft.replace(sys.argv[1])
    signal.pause()
