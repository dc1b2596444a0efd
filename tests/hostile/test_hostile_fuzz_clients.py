"""Training processes and kubeai-run survive arbitrary supervisor messages and obey only valid ones."""

import contextlib
import json
import math
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kubeai.elastic import wire
from kubeai.elastic.commands.orders import MalformedOrder, RunOrderKind, order_of
from kubeai.elastic.commands.workspace import RunWorkspace
from kubeai.elastic.messages import DirectiveKind, MalformedDirective, parse_line
from kubeai.elastic.monitor import ReceivedState, advance, apply
from kubeai.elastic.wire import CallAddress, CallRefused, Unreachable, open_stream, post

from tests.hostile.hostile_fuzz import each_field_odd, spoken
from tests.sdk.sdk_lines import MESSAGE
from tests.testkit.properties import examples

ORDER = {
    "type": "order",
    "generation": 4,
    "phase": "Running",
    "reason": "because",
    "order": "run",
    "run": 2,
    "stopping": False,
    "hosts": ["a", "b"],
    "exclusions": ["b"],
    "workers": 1,
    "token": "secret",
}
MOST = 2**31


def read(line: bytes) -> dict[str, Any] | None:
    """The line as the stream hands it on; None where it does not."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


@examples(100)
@given(st.lists(spoken(MESSAGE), min_size=1, max_size=3))
def test_a_directive_is_understood_or_ignored(lines: list[bytes]) -> None:
    """Never half of it, and nothing but a LEAVE or STOP ends a process."""
    understood_or_ignored(lines)


def test_a_directive_with_one_odd_field_is_understood_or_ignored() -> None:
    for line in each_field_odd(MESSAGE):
        understood_or_ignored([line])


def understood_or_ignored(lines: list[bytes]) -> None:
    state, final = ReceivedState(), False
    for now, message in enumerate(filter(None, map(read, lines))):
        try:
            line = parse_line(message)
        except MalformedDirective:
            continue
        state = advance(apply(state, line, now), now + 0.5)
        assert math.isfinite(line.act_in)
        assert line.act_in >= 0
        assert line.directive.kind in DirectiveKind
        assert state.seconds_left(now) is None or state.seconds_left(now + 1) is not None
        final = final or (line.directive.is_final and line.act_in <= 0.5)
    assert state.directive.is_final is final


@examples(100)
@given(line=spoken(ORDER))
def test_an_order_is_understood_or_ignored(tmp_path: Path, line: bytes) -> None:
    """What is understood can be put in place, and the files then say just that."""
    in_place_or_ignored(tmp_path, line)


def test_an_order_with_one_odd_field_is_understood_or_ignored(tmp_path: Path) -> None:
    for line in each_field_odd(ORDER):
        in_place_or_ignored(tmp_path, line)


def in_place_or_ignored(directory: Path, line: bytes) -> None:
    message = read(line)
    if message is None:
        return
    try:
        order = order_of(message)
    except MalformedOrder:
        return
    assert order.kind in RunOrderKind
    assert all(0 <= number <= MOST for number in (order.generation, order.run, order.workers))
    workspace = RunWorkspace(directory, "job", "http://localhost:1", None)
    workspace.list_hosts(order.hosts, order.exclusions)
    workspace.enter_run(order.run, order.token)
    said = {name: (directory / name).read_text(encoding="utf-8").splitlines() for name in ("hosts", "exclusions")}
    assert said == {"hosts": list(order.hosts), "exclusions": list(order.exclusions)}
    assert not order.token or (directory / "token").read_text(encoding="utf-8").strip() == order.token


chunked = st.builds(lambda body: b"%x\r\n%s\r\n" % (len(body), body), st.binary(max_size=40) | spoken(MESSAGE))
heads = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 409 Conflict\r\nContent-Length: 30\r\n\r\n",
        b"HTTP/1.1 999 \xff\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"",
    ]
)
answers = st.builds(
    lambda head, body: head + b"".join(body), heads, st.lists(chunked | st.binary(max_size=40), max_size=4)
)


@contextlib.contextmanager
def one_answer(answer: bytes) -> Iterator[CallAddress]:
    """A server that says just that to its first caller, whatever that one says."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield CallAddress(f"http://127.0.0.1:{server.getsockname()[1]}", "token")
        thread.join()


def hear(there: CallAddress) -> None:
    with open_stream(there, "/v1/processes/stream", {}, 5.0) as stream:
        assert all(isinstance(message, dict) for message in stream)


@examples(80)
@given(answers)
def test_no_answer_is_more_than_a_refusal_or_nothing(answer: bytes) -> None:
    """To a stream and to a post; what is handed on is an object, and no connection is left."""
    before = set(wire._open)
    with one_answer(answer) as there, contextlib.suppress(CallRefused, Unreachable):
        hear(there)
    with one_answer(answer) as there, contextlib.suppress(CallRefused, Unreachable):
        assert isinstance(post(there, "/v1/processes/report", {}), dict)
    assert wire._open <= before
