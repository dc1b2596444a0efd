"""The relay: one process of a pod or machine holds the stream to the supervisor for all of them.

To the other processes, and to its own, it is the supervisor: they make the same calls to it, over a local socket. It
passes their messages on in batches, and the lines of the shared stream to those that they are for. It understands
neither.

Two threads serve it. One waits for the local sockets and makes the calls, which may block. The other reads the stream,
so that no call delays a directive.
"""

from __future__ import annotations

import functools
import os
import queue
import selectors
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import local, sockets, threads
from .peer import Peer
from .requests import LAST_CHUNK, answer, chunk
from .wire import Connection, Refused, Stream, Unreachable, open_stream

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from .requests import Request
    from .stderr import StderrLog
    from .wire import Endpoint

UNREACHABLE = "unreachable"
"""The code of the refusal that says that the supervisor gave the relay no usable answer."""

_STREAM = "/v1/relays/stream"
_MESSAGES = "/v1/relays/messages"
_KINDS = {"/v1/processes/stream": "hello", "/v1/processes/report": "report"}
_MAX_PEERS = 1024
_MAX_MESSAGES = 32  # in one call: half of what the supervisor accepts, so that its limit of bytes holds too

Message = Dict[str, Any]


Sent = List[Tuple[Optional[Peer], Message]]
"""Messages with those who wait for their answer."""


class Relay:
    """Serves the processes that connect to `listener`. `endpoint` raises Refused or Unreachable.

    A fault in serving one process ends its connection alone; it connects again.
    """

    def __init__(self, listener: socket.socket, endpoint: Callable[[], Endpoint], stderr: StderrLog) -> None:
        self._stderr = stderr
        self._listener = listener
        self._endpoint = endpoint
        self._name = os.urandom(16).hex()
        self._connection = Connection()
        self._selector = selectors.PollSelector()  # without a descriptor that a forked child would inherit
        self._streams: queue.SimpleQueue[Stream | None] = queue.SimpleQueue()
        self._peers: set[Peer] = set()
        self._unsent: Sent = []
        self._is_closed = False
        # What both threads use: the open stream, and the processes on it.
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._members: dict[str, Peer] = {}

    def start(self) -> None:
        """Start the threads. Raises RuntimeError if the process is exiting."""
        for name, run in (("relay", self._serve), ("relay-stream", self._read_streams)):
            threads.start(f"kubeai-{name}", functools.partial(self._guarded, f"kubeai-{name}", run), self._stderr)

    def close(self) -> None:
        """End every connection and free the name, from any thread."""
        self._is_closed = True
        sockets.release(self._listener)
        self._end_stream()
        for peer in list(self._peers):
            sockets.shut(peer.sock)
        self._streams.put(None)

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        """Run a thread. Its own fault costs the others a reconnect: they find another relay, or do without."""
        try:
            run()
        except Exception as error:  # noqa: BLE001 - as above
            if not self._is_closed:  # `close` takes the sockets away from under a thread
                self._stderr.fault(name, error)
                self.close()

    # The thread of the local sockets and the calls.

    def _serve(self) -> None:
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not self._is_closed:
                for key, _ in self._selector.select():
                    if key.data is None:
                        self._accept()
                    elif not self._attempt(self._read, key.data):
                        self._drop(key.data)
                self._deliver()
        finally:
            for peer in list(self._peers):
                sockets.release(peer.sock)
            self._end_stream()  # which may have been opened during `close`
            self._connection.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        sockets.adopt(sock)
        if len(self._peers) >= _MAX_PEERS or not local.is_own_user(sock):
            sockets.release(sock)
            return
        sock.settimeout(0)
        peer = Peer(sock)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        is_open, request = peer.read()
        if not is_open:
            self._drop(peer)
        elif request is not None:
            self._received(peer, request)

    def _received(self, peer: Peer, request: Request) -> None:
        kind, process = _KINDS.get(request.path), request.body.get("process")
        if kind is None or not isinstance(process, str):
            peer.end(_refusal(Refused(HTTPStatus.NOT_FOUND, "unknown_call", "a relay has no such call")))
            return
        if kind == "hello":
            peer.process = process
        self._unsent.append((peer, {kind: request.body}))

    def _drop(self, peer: Peer) -> None:
        self._selector.unregister(peer.sock)
        self._peers.discard(peer)
        sockets.release(peer.sock)
        with self._lock:
            if self._members.get(peer.process) is peer:
                del self._members[peer.process]
                self._unsent.append((None, {"gone": peer.process}))

    def _deliver(self) -> None:
        while self._unsent:
            batch, self._unsent = self._unsent[:_MAX_MESSAGES], self._unsent[_MAX_MESSAGES:]
            if not self._attempt(self._send_or_fail, batch):
                self._send_each(batch)
        with self._lock:
            is_idle = not self._members
        if is_idle:
            self._end_stream()

    def _send_each(self, batch: Sent) -> None:
        """Send the messages of a batch one by one, as one of them causes a fault."""
        for each in batch:
            peer = each[0]
            if not self._attempt(self._send_or_fail, [each]) and peer is not None:
                with self._lock:
                    peer.end(_refusal(Unreachable("an internal error of the relay")))

    def _send_or_fail(self, batch: Sent) -> None:
        try:
            self._send(batch)
        except (Refused, Unreachable) as error:
            self._fail(batch, error)

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> bool:
        return threads.attempt("the relay", self._stderr, functools.partial(action, *arguments))

    def _send(self, batch: Sent) -> None:
        endpoint = self._endpoint()
        with self._lock:
            stream = self._stream
        if stream is None:
            batch = [(peer, message) for peer, message in batch if peer is not None]  # The others are gone already.
            if not batch:
                return
            stream = self._open(endpoint)
        for peer, message in batch:
            if peer is not None and "hello" in message:
                self._join(peer)
        body = {"relay": self._name, "messages": [message for _, message in batch]}
        answers = self._connection.post(endpoint, _MESSAGES, body).get("answers")
        if not isinstance(answers, list) or len(answers) != len(batch):
            raise Unreachable(f"{endpoint.address} did not answer each message")
        for (peer, message), each in zip(batch, answers):
            if peer is not None:
                self._settle(peer, message, each)

    def _open(self, endpoint: Endpoint) -> Stream:
        self._name = os.urandom(16).hex()
        stream = open_stream(endpoint, _STREAM, {"relay": self._name})
        with self._lock:
            self._stream = stream
        self._streams.put(stream)
        return stream

    def _join(self, peer: Peer) -> None:
        """Route lines to a process before it is announced: its first line may come before the answer."""
        with self._lock:
            replaced = self._members.get(peer.process)
            if replaced is not None and replaced is not peer:
                replaced.end()
            self._members[peer.process] = peer

    def _settle(self, peer: Peer, message: Message, result: Any) -> None:
        error = _refused(result)
        with self._lock:
            if error is None and "hello" in message:
                peer.stream()
                return
            if self._members.get(peer.process) is peer:
                del self._members[peer.process]
            peer.end(answer(HTTPStatus.OK, {}) if error is None else _refusal(error))

    def _fail(self, batch: Sent, error: Refused | Unreachable) -> None:
        """Answer with an error. If processes could not be announced or taken back, all have to join anew."""
        if any("report" not in message for _, message in batch) or _is_unknown_relay(error):
            self._end_stream()
        with self._lock:
            for peer, _ in batch:
                if peer is not None:
                    peer.end(_refusal(error))

    # The thread of the stream.

    def _read_streams(self) -> None:
        while True:
            stream = self._streams.get()
            if stream is None:
                return
            last = b""
            try:
                for message in stream.messages():
                    self._attempt(self._pass_on, message)
                last = LAST_CHUNK
            except Unreachable:
                pass
            finally:
                self._end_members(stream, last)

    def _pass_on(self, message: Mapping[str, Any]) -> None:
        if message.get("type") == "heartbeat":
            data = chunk(message)
            with self._lock:
                for peer in self._members.values():
                    peer.stream(data)
        names, line = message.get("processes"), message.get("line")
        if message.get("type") == "relayed" and isinstance(names, list) and isinstance(line, dict):
            self._pass_to([name for name in names if isinstance(name, str)], line)

    def _pass_to(self, processes: Sequence[str], line: Mapping[str, Any]) -> None:
        data, is_last = chunk(line), line.get("type") == "goodbye"
        with self._lock:
            for peer in filter(None, map(self._members.get, processes)):
                peer.stream(data)
                if is_last:
                    del self._members[peer.process]
                    peer.end(LAST_CHUNK)

    # Both threads.

    def _end_stream(self) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            self._end_members(stream, b"")

    def _end_members(self, stream: Stream, last: bytes) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None
                for peer in self._members.values():
                    peer.end(last)
                self._members.clear()
        stream.close()


def _refused(result: Any) -> Refused | None:
    """Return the refusal of one message; None if it was accepted."""
    if result == {}:
        return None
    fields = result if isinstance(result, dict) else {}
    status = fields.get("status")
    if not isinstance(status, int) or not 400 <= status < 600:  # noqa: PLR2004
        return Refused(HTTPStatus.BAD_GATEWAY, UNREACHABLE, "the answer is malformed")
    return Refused(status, str(fields.get("error", "")), str(fields.get("message", "")))


def _is_unknown_relay(error: Refused | Unreachable) -> bool:
    return isinstance(error, Refused) and error.code == "unknown_relay"


def _refusal(error: Refused | Unreachable) -> bytes:
    if isinstance(error, Unreachable):
        error = Refused(HTTPStatus.BAD_GATEWAY, UNREACHABLE, str(error))
    elif _is_unknown_relay(error):
        error = Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_serving", error.message)  # It opens a stream again.
    return answer(error.status, {"error": error.code, "message": error.message})
