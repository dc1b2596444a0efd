"""Reaches for the store of a round whose process is stopped, and prints what is said of it.

frameworks_silent_store.py PORT
"""

import sys

from kubeai.torchrun import stores
from kubeai.torchrun.member import RoundStoreAddress


def _main(port: int) -> None:
    stores._CLIENT_SECONDS = 1.0  # A test waits no longer than it has to.
    try:
        stores.connect(RoundStoreAddress("127.0.0.1", port))
    except stores.CannotReach as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
