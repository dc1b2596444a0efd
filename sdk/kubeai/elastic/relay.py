"""The relay: one process of a pod or machine holds the stream to the supervisor for all of them.

To the other processes, and to its own, it is the supervisor: they make the same calls to it, over a local socket. It
passes their messages on in batches, and the lines of the shared stream to those that they are for. It understands
neither. `SharedStream` is a process's own part in it; whatever goes wrong with a relay, the process holds a stream of
its own, until it has to open one again.

Two threads serve the relay. One waits for the local sockets and makes the calls, which may block. The other reads the
stream, so that no call delays a directive.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import queue
import re
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from . import threads, wire
from .wire import CallAddress, CallRefused, MalformedBytes, Unreachable, WireStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .identity import RunIdentity
    from .threads import StderrLog

_UNREACHABLE = "unreachable"  # the code of the refusal that says: the supervisor gave the relay no usable answer
_STREAM = "/v1/relays/stream"
_MESSAGES = "/v1/relays/messages"
_KINDS = {"/v1/processes/stream": "hello", "/v1/processes/report": "report"}
_MAX_PEERS = 1024
_MAX_MESSAGES = 32  # in one call: half of what the supervisor accepts, so that its limit of bytes holds too
_RECEIVE_BYTES = 65536
_MAX_HEAD = 16 * 1024
_MAX_BODY = 16 * 1024  # as the supervisor's bound for a message of a process
_FIRST_LINE = re.compile(rb"POST (/[!-~]{0,200}) HTTP/1\.1")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,6})[ \t]*\r\n", re.IGNORECASE)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_ATTEMPTS = 10
_BETWEEN_SECONDS = 0.02  # while a relay has taken the name and does not listen yet, or is dying


@dataclass(frozen=True)
class RelayedCall:
    """A POST of a JSON object by a process."""

    path: str
    body: dict[str, Any]


@dataclass(eq=False)
class RelayedPeer:
    """The connection of a process to the relay, which carries one call.

    `send` and `end` may be called by both threads, under one lock.
    """

    sock: socket.socket
    process: str = ""  # once it has asked for a stream
    _data: bytearray = field(default_factory=bytearray)
    _is_streaming: bool = False

    def read(self) -> tuple[bool, RelayedCall | None]:
        """Read the bytes that have arrived.

        Return whether the connection is still open, and the call once it is complete.

        The connection counts as closed if the call is too large or if more bytes follow it.
        """
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
            self._data += data
            return bool(data), _call(bytes(self._data)) if data else None
        except BlockingIOError:
            return True, None
        except (OSError, MalformedBytes):
            return False, None

    def send(self, data: bytes) -> None:
        """Send all of `data`, or end the connection if the process does not read."""
        try:
            # Not even a process that has asked for SIGPIPE is to die of it.
            is_sent = self.sock.send(data, socket.MSG_NOSIGNAL) == len(data)
        except OSError:
            is_sent = False
        if not is_sent:
            wire.shut(self.sock)

    def stream(self, data: bytes = b"") -> None:
        """Send a part of the process's stream. The first part begins the stream."""
        head = b"" if self._is_streaming else _STREAM_HEAD
        self._is_streaming = True
        if head or data:
            self.send(head + data)

    def end(self, data: bytes = b"") -> None:
        """Send the last bytes and end the connection. The relay sees its end as the process does."""
        if data and (self._is_streaming or data != _LAST_CHUNK):
            self.send(data)
        wire.shut(self.sock)


def _call(data: bytes) -> RelayedCall | None:
    """Return the call in the bytes of a connection once it is complete. Raises MalformedBytes."""
    head, found, body = data.partition(b"\r\n\r\n")
    if len(head) > _MAX_HEAD:
        raise MalformedBytes("the head is too long")
    if not found:
        return None
    first, length = _FIRST_LINE.match(head), _LENGTH.search(head + b"\r\n")
    if first is None or length is None or int(length[1]) > _MAX_BODY or len(body) > int(length[1]):
        raise MalformedBytes("not a call with one JSON object")
    if len(body) < int(length[1]):
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedBytes("not JSON") from error
    if not isinstance(value, dict):
        raise MalformedBytes("not a JSON object")
    return RelayedCall(first[1].decode(), value)


def _chunk(line: Mapping[str, Any]) -> bytes:
    data = json.dumps(line).encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _answer(error: CallRefused | Unreachable | None) -> bytes:
    """Return the complete answer to a call."""
    if isinstance(error, Unreachable):
        error = CallRefused(HTTPStatus.BAD_GATEWAY, _UNREACHABLE, str(error))
    elif error is not None and error.code == "unknown_relay":
        error = CallRefused(HTTPStatus.SERVICE_UNAVAILABLE, "not_serving", error.message)  # It opens a stream again.
    status = HTTPStatus.OK if error is None else error.status
    content = {} if error is None else {"error": error.code, "message": error.message}
    reason = HTTPStatus(status).phrase if status in list(HTTPStatus) else "Refused"
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {int(status)} {reason}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


SentMessages = List[Tuple[Optional[RelayedPeer], Dict[str, Any]]]
"""Messages, each with the peer that waits for the answer."""


class PodRelay:
    """Serves the processes that connect to `listener`. `address` raises CallRefused or Unreachable.

    A fault in serving one process ends its connection alone; it connects again.
    """

    def __init__(self, listener: socket.socket, address: Callable[[], CallAddress], stderr: StderrLog) -> None:
        self._stderr = stderr
        self._listener = listener
        self._address = address
        self._name = os.urandom(16).hex()
        self._connection = wire.PostConnection()
        self._selector = selectors.PollSelector()  # without a descriptor that a forked child would inherit
        self._streams: queue.SimpleQueue[WireStream | None] = queue.SimpleQueue()
        self._peers: set[RelayedPeer] = set()
        self._unsent: SentMessages = []
        self._is_closed = False
        # What both threads use: the open stream, and the processes on it.
        self._lock = threading.Lock()
        self._stream: WireStream | None = None
        self._members: dict[str, RelayedPeer] = {}

    def start(self) -> None:
        """Start the threads. Raises RuntimeError if the process is exiting."""
        for name, run in (("relay", self._serve), ("relay-stream", self._read_streams)):
            threads.start(f"kubeai-{name}", functools.partial(self._guarded, f"kubeai-{name}", run), self._stderr)

    def close(self) -> None:
        """End every connection and free the name, from any thread."""
        self._is_closed = True
        wire.release(self._listener)
        self._end_stream()
        for peer in list(self._peers):
            wire.shut(peer.sock)
        self._streams.put(None)

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        """Run a thread.

        After an unforeseen exception the relay closes, and the processes find another one or do without.
        """
        try:
            run()
        except Exception as error:  # noqa: BLE001 - as above
            if not self._is_closed:  # `close` takes the sockets away from under a thread
                self._stderr.fault(name, error)
                self.close()

    def _attempt(self, action: Callable[..., None], *arguments: Any) -> bool:
        return threads.attempt("the relay", self._stderr, functools.partial(action, *arguments))

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
                wire.release(peer.sock)
            self._end_stream()  # which may have been opened during `close`
            self._connection.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        wire.adopt(sock)
        if len(self._peers) >= _MAX_PEERS or not wire.is_own_user(sock):
            wire.release(sock)
            return
        sock.settimeout(0)
        peer = RelayedPeer(sock)
        self._peers.add(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _read(self, peer: RelayedPeer) -> None:
        is_open, call = peer.read()
        if not is_open:
            self._drop(peer)
        elif call is not None:
            self._received(peer, call)

    def _received(self, peer: RelayedPeer, call: RelayedCall) -> None:
        kind, process = _KINDS.get(call.path), call.body.get("process")
        if kind is None or not isinstance(process, str):
            peer.end(_answer(CallRefused(HTTPStatus.NOT_FOUND, "unknown_call", "a relay has no such call")))
            return
        if kind == "hello":
            peer.process = process
        self._unsent.append((peer, {kind: call.body}))

    def _drop(self, peer: RelayedPeer) -> None:
        self._selector.unregister(peer.sock)
        self._peers.discard(peer)
        wire.release(peer.sock)
        with self._lock:
            if self._members.get(peer.process) is peer:
                del self._members[peer.process]
                self._unsent.append((None, {"gone": peer.process}))

    def _deliver(self) -> None:
        while self._unsent:
            batch, self._unsent = self._unsent[:_MAX_MESSAGES], self._unsent[_MAX_MESSAGES:]
            if self._attempt(self._send_or_fail, batch):
                continue
            for each in batch:  # one by one, as one of them causes a fault
                peer = each[0]
                if not self._attempt(self._send_or_fail, [each]) and peer is not None:
                    with self._lock:
                        peer.end(_answer(Unreachable("an internal error of the relay")))
        with self._lock:
            is_idle = not self._members
        if is_idle:
            self._end_stream()

    def _send_or_fail(self, batch: SentMessages) -> None:
        """Send messages.

        After an error, answer each of them with it; if one was no report, all processes have to join again.
        """
        try:
            self._send(batch)
        except (CallRefused, Unreachable) as error:
            is_unknown = isinstance(error, CallRefused) and error.code == "unknown_relay"
            if is_unknown or any("report" not in message for _, message in batch):
                self._end_stream()
            with self._lock:
                for peer, _ in batch:
                    if peer is not None:
                        peer.end(_answer(error))

    def _send(self, batch: SentMessages) -> None:
        address = self._address()
        with self._lock:
            stream = self._stream
        if stream is None:
            batch = [(peer, message) for peer, message in batch if peer is not None]  # The others are gone already.
            if not batch:
                return
            self._name = os.urandom(16).hex()
            stream = wire.open_stream(address, _STREAM, {"relay": self._name})
            with self._lock:
                self._stream = stream
            self._streams.put(stream)
        with self._lock:
            # Route lines to a process before it is announced: its first line may come before the answer.
            for joining in [peer for peer, message in batch if peer is not None and "hello" in message]:
                replaced = self._members.get(joining.process)
                if replaced is not None and replaced is not joining:
                    replaced.end()
                self._members[joining.process] = joining
        body = {"relay": self._name, "messages": [message for _, message in batch]}
        answers = self._connection.post(address, _MESSAGES, body).get("answers")
        if not isinstance(answers, list) or len(answers) != len(batch):
            raise Unreachable(f"{address.url} did not answer each message")
        for (peer, message), each in zip(batch, answers):
            if peer is not None:
                self._settle(peer, message, each)

    def _settle(self, peer: RelayedPeer, message: Mapping[str, Any], result: Any) -> None:
        """Pass the supervisor's answer to one message on to its process: `{}`, or the refusal."""
        error = None
        if result != {}:
            fields = result if isinstance(result, dict) else {}
            status = fields.get("status")
            if isinstance(status, int) and 400 <= status < 600:  # noqa: PLR2004
                error = CallRefused(status, str(fields.get("error", "")), str(fields.get("message", "")))
            else:
                error = CallRefused(HTTPStatus.BAD_GATEWAY, _UNREACHABLE, "the answer is malformed")
        with self._lock:
            if error is None and "hello" in message:
                peer.stream()
                return
            if self._members.get(peer.process) is peer:
                del self._members[peer.process]
            peer.end(_answer(error))

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
                last = _LAST_CHUNK
            except Unreachable:
                pass
            finally:
                self._end_members(stream, last)

    def _pass_on(self, message: Mapping[str, Any]) -> None:
        if message.get("type") == "heartbeat":
            data = _chunk(message)
            with self._lock:
                for peer in self._members.values():
                    peer.stream(data)
        names, line = message.get("processes"), message.get("line")
        if message.get("type") == "relayed" and isinstance(names, list) and isinstance(line, dict):
            data, is_last = _chunk(line), line.get("type") == "goodbye"
            with self._lock:
                for name in names:
                    member = self._members.get(name) if isinstance(name, str) else None
                    if member is not None:
                        member.stream(data)
                        if is_last:
                            del self._members[member.process]
                            member.end(_LAST_CHUNK)

    # Both threads.

    def _end_stream(self) -> None:
        with self._lock:
            stream = self._stream
        if stream is not None:
            self._end_members(stream, b"")

    def _end_members(self, stream: WireStream, last: bytes) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None
                for peer in self._members.values():
                    peer.end(last)
                self._members.clear()
        stream.close()


def relay_name(own: RunIdentity) -> str:
    """Return the name that all processes with this identity and user share. Raises OSError.

    The directory is told by its inode, not by its path: pods that use the host's network share the namespace of names,
    and all mount their directory at the same path.
    """
    found = own.directory.stat()
    key = (os.geteuid(), found.st_dev, found.st_ino, own.job, own.run)
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


class SharedStream:
    """Calls the relay, and becomes the relay if there is none. `address` is that of the relay's own calls."""

    def __init__(self, address: Callable[[], CallAddress], stderr: StderrLog) -> None:
        self._address = address
        self._stderr = stderr
        self._is_wanted = os.environ.get("KUBEAI_RELAY") != "0"
        self._relay: PodRelay | None = None
        self._stream: WireStream | None = None
        self._there = CallAddress("", "")

    def open(self, own: RunIdentity, path: str, hello: Mapping[str, Any]) -> WireStream | None:
        """Open a stream through the relay; None: hold a stream of its own. Raises CallRefused or Unreachable."""
        before, self._stream = self._stream, None
        # A relay that was silent may be stopped, while the kernel still accepts connections for it.
        if not self._is_wanted or (before is not None and before.was_silent):
            return None
        try:
            name = relay_name(own)
        except OSError:
            return None
        self._there = CallAddress(wire.LOCAL_SCHEME + name, "")
        for _ in range(_ATTEMPTS):
            if self._relay is None:
                self._become_relay(name)
            try:
                self._stream = wire.open_stream(self._there, path, hello)
            except CallRefused as error:
                _raise_unless_unknown(error)
                break
            except Unreachable as error:
                if not isinstance(error.__cause__, ConnectionError):
                    break
            else:
                break
            time.sleep(_BETWEEN_SECONDS)
        return self._stream

    def post(self, path: str, body: Mapping[str, Any], timeout: float) -> bool:
        """Post through the relay if the stream goes through it, and return whether that was done. Raises as `open`."""
        if self._stream is None or self._stream.is_closed:
            return False
        try:
            wire.post(self._there, path, body, timeout)
        except CallRefused as error:
            _raise_unless_unknown(error)
            return False
        except Unreachable:
            self._stream = None
            return False
        return True

    def close(self) -> None:
        """Stop relaying: the other processes find another relay at once."""
        if self._relay is not None:
            self._relay.close()

    def _become_relay(self, name: str) -> None:
        try:
            listener = wire.listen_locally(name)
        except OSError:
            return  # another process is the relay
        relay = PodRelay(listener, self._address, self._stderr)
        try:
            relay.start()
        except RuntimeError:  # this process is exiting
            relay.close()
        else:
            self._relay = relay


def _raise_unless_unknown(error: CallRefused) -> None:
    """Raise the error that the supervisor has answered through the relay, unless the supervisor knows no relays."""
    if error.code == _UNREACHABLE:
        raise Unreachable(error.message) from error
    if error.status != HTTPStatus.NOT_FOUND or error.code == "unknown_job":
        raise error
