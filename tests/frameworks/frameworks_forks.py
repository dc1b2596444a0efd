"""Asserts which connections a forked process has: none of a group, and every other file of its parent.

A connection to a port at which this process listens is one of its group, as those of gloo are.
"""

import os
import socket
import sys
from pathlib import Path

from kubeai.torch.connections import Connections
from kubeai.torch.group import form_alone, leave_group


def _target(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _in_child(descriptor: int) -> str:
    """Return where a descriptor leads to in a process that is forked now."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, _target(descriptor).encode())
        os._exit(0)
    os.wait()
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        return answer.read()


def main() -> None:
    foreign = socket.create_server(("127.0.0.1", 0))
    connections = Connections()
    kept = socket.create_connection(foreign.getsockname())
    form_alone("gloo", 10.0)
    listener = socket.create_server(("127.0.0.1", 0))
    connection = socket.create_connection(listener.getsockname())
    connections.note()
    descriptor = connection.detach()
    assert _in_child(descriptor) == os.devnull
    assert _target(descriptor).startswith("socket:")
    assert _in_child(kept.fileno()).startswith("socket:")
    leave_group(connections)
    assert os.read(descriptor, 1) == b""  # it is shut down
    os.close(descriptor)
    reused = os.open(sys.executable, os.O_RDONLY)
    os.dup2(reused, descriptor)
    assert _in_child(descriptor) == os.path.realpath(sys.executable)


if __name__ == "__main__":
    main()
