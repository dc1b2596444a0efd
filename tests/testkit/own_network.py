"""Lets a program of a test have network interfaces of its own: only a loopback, which is down at first."""

import fcntl
import socket
import struct
import subprocess

OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "--mount")
"""Before a command: it has these, and mounts of its own, and may do everything with both."""
_SET_FLAGS = 0x8914
_UP = 0x1


def may_have_own_network() -> bool:
    """Return whether this machine lets us."""
    try:
        return subprocess.run([*OWN_NETWORK, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def switch_loopback(*, is_up: bool) -> None:
    """Switch the loopback of this process's network. Raises OSError where the network is not its own."""
    flags = _UP if is_up else 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14s", b"lo", flags, b""))
