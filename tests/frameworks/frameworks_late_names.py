"""Reaches the store of a round where DNS answers nobody, and prints how long that has taken, in seconds.

frameworks_late_names.py RESOLV_CONF

Run it behind `OWN_NETWORK`. The file names 127.0.0.1 as the server. Torch asks DNS no more once it has had no answer,
so the client is another process than that of the store.
"""

import socket
import subprocess
import sys
import time

from kubeai.torchrun.member import RoundStoreAddress
from kubeai.torchrun.stores import connect, open_store

from tests.testkit.own_network import switch_loopback

_ADDRESS = "127.0.0.1"


def _reach(port: int) -> None:
    begun = time.monotonic()
    connect(RoundStoreAddress(_ADDRESS, port)).set("reached", "yes")
    sys.stdout.write(f"{time.monotonic() - begun:.1f}\n")


def _main(resolv_conf: str) -> None:
    switch_loopback(is_up=True)
    subprocess.run(["mount", "--bind", resolv_conf, "/etc/resolv.conf"], check=True)  # noqa: S607 - of util-linux
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((_ADDRESS, 53))
        store, where = open_store(_ADDRESS)
        subprocess.run([sys.executable, __file__, "", str(where.port)], check=True)
        assert store.get("reached") == b"yes"


if __name__ == "__main__":
    if sys.argv[1]:
        _main(sys.argv[1])
    else:
        _reach(int(sys.argv[2]))
