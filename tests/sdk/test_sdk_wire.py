"""Posts and streams over real sockets."""

import concurrent.futures
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubeai.elastic import wire
from kubeai.elastic.testing import FakeSupervisor
from kubeai.elastic.wire import (
    MAX_LINE,
    CallAddress,
    CallRefused,
    PostConnection,
    Unreachable,
    WireBackoff,
    WireStream,
    open_stream,
    post,
)

STREAM = "/v1/processes/stream"
REPORT = "/v1/processes/report"
HELLO = {"process": "p", "rank": 0}


def endpoint(supervisor: FakeSupervisor, ca: Path | None = None) -> CallAddress:
    return CallAddress(supervisor.address, supervisor.job_token("job", 1), ca)


def listen(supervisor: FakeSupervisor, silence: float = 5.0) -> WireStream:
    return open_stream(endpoint(supervisor), STREAM, HELLO, silence)


@contextlib.contextmanager
def answering(answer: bytes, *, stay: bool = False) -> Iterator[CallAddress]:
    """A server that reads something from its first caller and answers these bytes, right or wrong."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        leave = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                leave.wait(60 if stay else 0)

        thread = threading.Thread(target=serve)
        thread.start()
        yield CallAddress(f"http://127.0.0.1:{server.getsockname()[1]}", "token")
        leave.set()
        thread.join()


def answer(status: str, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    assert not wire._open


def test_a_connection_that_is_closed_while_another_thread_opens_it_again_can_be_closed(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the old one wakes that thread, which is done before `close` returns."""
    connection = PostConnection()

    def again(sock: socket.socket) -> None:
        monkeypatch.undo()
        wire.release(sock)
        connection.post(endpoint(supervisor), REPORT, {"kind": "left", "process": "p"})

    connection.post(endpoint(supervisor), REPORT, {"kind": "left", "process": "p"})
    monkeypatch.setattr(wire, "release", again)
    connection.close()
    assert len(supervisor.reports) == 2
    connection.close()


def test_a_post_says_what_it_is_given_and_returns_the_answer(supervisor: FakeSupervisor) -> None:
    assert post(endpoint(supervisor), REPORT, {"kind": "left", "process": "p", "rank": None}) == {}
    assert supervisor.reports[0].body == {"kind": "left", "process": "p", "rank": None}
    assert supervisor.reports[0].token == supervisor.job_token("job", 1)


def test_a_refusal_carries_the_contracts_word(supervisor: FakeSupervisor) -> None:
    supervisor.refuse(409, "run_is_over", "the run is over")
    for call in (lambda: post(endpoint(supervisor), REPORT, {}), lambda: listen(supervisor)):
        with pytest.raises(CallRefused) as refused:
            call()
        assert (refused.value.status, refused.value.code, refused.value.message) == (
            409,
            "run_is_over",
            "the run is over",
        )


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff"])
def test_a_refusal_in_other_words_has_no_code(body: bytes) -> None:
    with answering(answer("502 Bad Gateway", body)) as there, pytest.raises(CallRefused) as refused:
        post(there, REPORT, {})
    assert (refused.value.status, refused.value.code) == (502, "")


def test_a_redirect_is_refused_and_not_followed(supervisor: FakeSupervisor) -> None:
    elsewhere = answer("307 Temporary Redirect", b"", f"Location: {supervisor.address}{REPORT}")
    with answering(elsewhere) as there, pytest.raises(CallRefused) as refused:
        post(there, REPORT, {})
    assert refused.value.status == 307
    assert not supervisor.reports


def test_proxies_of_the_environment_are_not_asked(supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert post(endpoint(supervisor), REPORT, {}) == {}


@pytest.mark.parametrize(
    "raw",
    [b"", b"nonsense\r\n\r\n", answer("200 OK", b"nonsense"), answer("200 OK", b"[]"), answer("200 OK", b"[" * 200000)],
)
def test_an_answer_that_is_none_is_unreachable(raw: bytes) -> None:
    with answering(raw) as there, pytest.raises(Unreachable):
        post(there, REPORT, {})


def test_a_server_that_says_nothing_is_unreachable_after_the_time_out() -> None:
    with answering(b"", stay=True) as there:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            post(there, REPORT, {}, timeout=0.05)
        assert time.monotonic() - began < 15


@pytest.mark.parametrize("address", ["", "ftp://h:1", "http://", "http://h:port", "127.0.0.1:80", "http://bücher:1"])
def test_an_address_that_is_none_is_unreachable(address: str) -> None:
    with pytest.raises(Unreachable):
        post(CallAddress(address, "token"), REPORT, {})


def test_a_token_that_would_be_a_header_of_its_own_is_unreachable(supervisor: FakeSupervisor) -> None:
    with pytest.raises(Unreachable):
        post(CallAddress(supervisor.address, "a\r\nX-Other: b"), REPORT, {})


def test_lines_come_as_they_are_sent_without_heartbeats(supervisor: FakeSupervisor) -> None:
    supervisor.direct(directive="CHECKPOINT")
    with listen(supervisor) as stream:
        lines = iter(stream)
        assert next(lines)["directive"] == "CHECKPOINT"
        threading.Timer(0.35, lambda: supervisor.direct(directive="STOP")).start()
        assert next(lines)["directive"] == "STOP"
        supervisor.send_raw(b'{"type": "novel"}\n{"type": "heartbeat"}\n{"ty')
        supervisor.send_raw(b'pe": "x"}\n')
        assert [next(lines)["type"] for _ in range(2)] == ["novel", "x"]


def test_heartbeats_are_life(supervisor: FakeSupervisor) -> None:
    with listen(supervisor, silence=0.3) as stream:
        lines = iter(stream)
        next(lines)
        threading.Timer(0.7, lambda: supervisor.direct(directive="LEAVE")).start()
        assert next(lines)["directive"] == "LEAVE"


def test_three_heartbeats_are_asked_for_in_the_silence_that_ends_a_stream() -> None:
    """The kernel asks as well whether the supervisor's machine is still there."""
    with socket.create_server(("127.0.0.1", 0)) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        there = CallAddress(f"http://127.0.0.1:{server.getsockname()[1]}", "token")
        opening = pool.submit(open_stream, there, STREAM, {}, silence=60.0)
        connection, _ = server.accept()
        with connection:
            asked = connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with opening.result() as stream:
                assert b"\r\nHeartbeat-Seconds: 20\r\n" in asked
                assert stream._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert stream._sock.gettimeout() == 60.0


def test_silence_is_unreachable() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    first = b"b\r\n" + b'{"type":1}\n' + b"\r\n"
    with answering(head + first, stay=True) as there, open_stream(there, STREAM, {}, silence=0.1) as stream:
        lines = iter(stream)
        assert next(lines) == {"type": 1}
        with pytest.raises(Unreachable, match=r"no data for 0.1 s"):
            next(lines)


def test_a_stream_that_ends_in_order_ends_the_iteration(supervisor: FakeSupervisor) -> None:
    with listen(supervisor) as stream:
        supervisor.stop(goodbye=True)
        assert [line["type"] for line in stream] == ["directive", "goodbye"]


def test_a_stream_that_breaks_is_unreachable(supervisor: FakeSupervisor) -> None:
    with listen(supervisor) as stream:
        supervisor.drop()
        with pytest.raises(Unreachable):
            list(stream)


@pytest.mark.parametrize(
    "raw", [b"nonsense\n", b"[]\n", b"\n", b"\xff\n", b"x" * (MAX_LINE + 1), b"[" * 100000 + b"\n"]
)
def test_a_malformed_line_is_unreachable_and_the_good_ones_before_it_count(
    supervisor: FakeSupervisor, raw: bytes
) -> None:
    """Also in the same packet, and also when the end of the line never comes."""
    with listen(supervisor) as stream:
        supervisor.send_raw(b'{"type": "good"}\n' + raw)
        lines = iter(stream)
        next(lines)
        assert next(lines) == {"type": "good"}
        with pytest.raises(Unreachable):
            next(lines)


def test_an_answer_that_is_no_stream_is_unreachable() -> None:
    with answering(answer("200 OK", b"{}")) as there, pytest.raises(Unreachable):
        open_stream(there, STREAM, {})


def test_close_wakes_a_reader_in_another_thread() -> None:
    with FakeSupervisor(heartbeat=60) as quiet:
        stream = listen(quiet, silence=30)
        heard: list[Any] = []
        reader = threading.Thread(target=lambda: heard.extend(stream))
        reader.start()
        quiet.wait_for(lambda: heard)
        closed = threading.Thread(target=stream.close)
        closed.start()
        for thread in (closed, reader):
            thread.join(2)
            assert not thread.is_alive()
        stream.close()


class _Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_backoff_grows_with_the_absence_of_the_supervisor_and_begins_again() -> None:
    """Ceilings double to a second, are a quarter of the absence later, and 5 s in the end; anything below may come."""
    clock = _Clock()
    backoff = WireBackoff(first=0.1, maximum=5.0, clock=clock)
    for ceiling in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert 0 <= backoff.next() <= ceiling
    for absence, ceiling in ((4.0, 1.0), (8.0, 2.0), (3600.0, 5.0)):
        clock.now = 1000.0 + absence
        waits = [backoff.next() for _ in range(500)]
        assert 0 <= min(waits) < ceiling * 0.1
        assert ceiling * 0.9 < max(waits) <= ceiling
    backoff.reset()
    assert backoff.next() <= 0.1
    assert max(backoff.next() for _ in range(200)) <= 1.0


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A fresh certificate for 127.0.0.1 that vouches for itself, and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate")
    pem = tmp_path / "tls.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = ["openssl", "req", "-x509", *key, "-days", "1", *names, "-keyout", str(pem), "-out", f"{pem}.crt"]
    subprocess.run(made, check=True, capture_output=True)
    pem.write_text(pem.read_text() + Path(f"{pem}.crt").read_text())
    return pem


@pytest.fixture
def secure(supervisor: FakeSupervisor, certificate: Path) -> FakeSupervisor:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    assert supervisor._server is not None
    server = supervisor._server
    # The handshake is left to the handler's thread: a caller that breaks it off must not end the server.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return supervisor


def _https(supervisor: FakeSupervisor, ca: Path | None) -> CallAddress:
    return CallAddress(supervisor.address.replace("http:", "https:"), supervisor.job_token("job", 1), ca)


def test_posts_and_streams_over_tls(secure: FakeSupervisor, certificate: Path) -> None:
    there = _https(secure, certificate)
    assert post(there, REPORT, {}) == {}
    with open_stream(there, STREAM, HELLO, silence=5) as stream:
        lines = iter(stream)
        assert next(lines)["directive"] == "RUN"
        secure.direct(directive="STOP")
        assert next(lines)["directive"] == "STOP"
        threading.Timer(0.3, stream.close).start()
        assert list(lines) == []


def test_a_stranger_behind_tls_is_unreachable(secure: FakeSupervisor) -> None:
    """Its certificate is signed by nobody we trust, so it never sees the token."""
    with pytest.raises(Unreachable, match="certificate verify failed"):
        post(_https(secure, None), REPORT, {})
    assert not secure.reports


def test_a_ca_that_cannot_be_read_is_unreachable(secure: FakeSupervisor, tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text(json.dumps({}))
    with pytest.raises(Unreachable):
        post(_https(secure, tmp_path / "broken.pem"), REPORT, {})
