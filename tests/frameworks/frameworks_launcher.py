"""Starts the processes of a job one by one on one machine, as pods are, and ends when all of them have.

    frameworks_launcher.py jax|tensorflow PROCESSES SCRIPT ARGUMENT …

It exits with 0 if all have done so, otherwise with the code of another one. Signals reach all, as they are one group.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path


def _jax(processes: int) -> Iterator[dict[str, str]]:
    (coordinator,) = _free_addresses(1)
    for rank in range(processes):
        yield {"COORDINATOR": coordinator, "PROCESSES": str(processes), "PROCESS": str(rank)}


def _tensorflow(processes: int) -> Iterator[dict[str, str]]:
    cluster = {"worker": _free_addresses(processes)}
    for rank in range(processes):
        yield {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}


_PLACES: Mapping[str, Callable[[int], Iterator[dict[str, str]]]] = {"jax": _jax, "tensorflow": _tensorflow}
"""By framework, the variables from which each process knows its place among the others."""


def _free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def _main(framework: str, processes: int, script: list[str]) -> int:
    command = [sys.executable, str(Path(__file__).with_name("frameworks_printing.py")), *script]
    started = []
    for rank, place in enumerate(_PLACES[framework](processes)):
        own = {"FRAMEWORKS_RANK": str(rank), "FRAMEWORKS_PROCESSES": str(processes)}
        started.append(subprocess.Popen(command, env={**os.environ, **place, **own}))
    codes = [process.wait() for process in started]
    sys.stdout.write(f"The processes exited with {codes}.\n")
    return next((abs(code) for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
