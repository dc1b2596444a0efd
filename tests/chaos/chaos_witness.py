"""Runs a service that reports its resources at SIGUSR2: `python -m tests.chaos.chaos_witness supervisor serve`.

The product's own command, with one handler more. What the kernel knows is counted from outside.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testkit.waiting import until

WITNESS_FILE = "WITNESS_FILE"
"""The environment variable that names the file which is written."""
_RECORD = ("supervisor.observability", "supervisor.domain.stays")
"""What has happened is kept on purpose, within bounds that other tests show."""


@dataclass(frozen=True, slots=True)
class WitnessedHold:
    """The resources of a process at an instant; `objects` are without the record's, after a garbage collection."""

    tasks: Counter[str]
    objects: int
    descriptors: int
    threads: int
    resident_bytes: int

    def is_no_more_than(self, earlier: "WitnessedHold") -> bool:
        return (
            not self.tasks - earlier.tasks
            and self.descriptors <= earlier.descriptors
            and self.threads <= earlier.threads
        )


async def held(pid: int, file: Path) -> WitnessedHold:
    _ask(pid, file)
    await until(file.exists)
    return _read(pid, file)


def _ask(pid: int, file: Path) -> None:
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)


def _read(pid: int, file: Path) -> WitnessedHold:
    said = json.loads(file.read_bytes())
    process = Path(f"/proc/{pid}")
    return WitnessedHold(
        Counter(said["tasks"]),
        said["objects"],
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        int((process / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    )


def _say(file: Path) -> None:
    gc.collect()
    # glibc keeps what was freed in its arenas, from one look to the next up to 20 MB more or less.
    ctypes.CDLL(None).malloc_trim(0)
    objects = sum(not str(type(each).__module__).startswith(_RECORD) for each in gc.get_objects())
    tasks = Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())
    # As a whole or not at all: somebody waits for it to appear.
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps({"tasks": tasks, "objects": objects}), encoding="utf-8")
    unfinished.replace(file)


def _agent(_arguments: Sequence[str]) -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from node_agent import __main__, stream  # noqa: PLC0415 - after the variable, as in the agent itself

    # No setting, as no user should shorten it: with its five seconds, hundreds of reconnections take half an hour.
    stream._MAX_DELAY = 0.02
    sys.argv[1:] = []
    __main__.main()


def _supervisor(arguments: Sequence[str]) -> None:
    from supervisor import __main__  # noqa: PLC0415 - the agent's process does without it

    sys.exit(__main__.main(arguments))


def _main(service: str, *arguments: str) -> None:
    file = Path(os.environ.pop(WITNESS_FILE))
    signal.signal(signal.SIGUSR2, lambda _number, _frame: _say(file))
    {"agent": _agent, "supervisor": _supervisor}[service](arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])
