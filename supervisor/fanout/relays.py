"""One stream for all training processes of a pod or machine: a relay there holds it and passes the lines on.

A line of such a stream names the processes that it is for, so the same directive is sent once to all of them.
"""

import asyncio
from collections.abc import Collection

import msgspec

from supervisor.domain.order import Worker
from supervisor.fanout.lines import LineStream, line


class Relay:
    """The open stream of a relay, and the processes that it carries."""

    def __init__(self, lines: LineStream) -> None:
        self.lines = lines
        self._streams: dict[str, RelayedStream] = {}
        self._unsent: dict[str, bytes] = {}

    @property
    def streams(self) -> Collection["RelayedStream"]:
        """The streams of the processes, in the order in which they joined."""
        return self._streams.values()

    def join(self, worker: Worker) -> "RelayedStream":
        """Adds a process and returns its stream."""
        stream = self._streams[worker.process] = RelayedStream(self, worker)
        return stream

    def leave(self, process: str) -> "RelayedStream | None":
        """Removes a process and returns its stream; None if it had none."""
        return self._streams.pop(process, None)

    def push(self, process: str, data: bytes) -> None:
        """Sends a process a line once the present callback of the loop has ended, together with those of others.

        Only the last line of a process is sent: each is the whole present state.
        """
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent[process] = data

    def _flush(self) -> None:
        processes: dict[bytes, list[str]] = {}
        for process, data in self._unsent.items():
            processes.setdefault(data, []).append(process)
        self._unsent.clear()
        for data, names in processes.items():
            self.lines.push(line({"type": "relayed", "processes": names, "line": msgspec.Raw(data.rstrip())}))


class RelayedStream:
    """The part of a relay's stream that belongs to one process."""

    __slots__ = ("_relay", "worker")

    def __init__(self, relay: Relay, worker: Worker) -> None:
        self._relay = relay
        self.worker = worker

    @property
    def wire(self) -> LineStream:
        """The response that carries the lines."""
        return self._relay.lines

    def push(self, data: bytes) -> None:
        """Sends a line."""
        self._relay.push(self.worker.process, data)

    def finish(self, reason: str) -> None:
        """Ends the part of this process with a goodbye."""
        self._relay.push(self.worker.process, line({"type": "goodbye", "reason": reason}))
