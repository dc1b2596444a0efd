"""The elastic agents' own wire, for the time in which the supervisor is away: each asks all others, and answers.

`POST /v1/peers` with `{"member", "round", "in_process"}`: a member that waits, or is stranded, and the round that it
wants to leave. The answer has the fields of an `Answer`. The caller names the random id of the member that it calls,
which nobody else knows but the supervisor and the members of the same round.
"""

from __future__ import annotations

import hmac
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, cast

from kubeai.elastic import threads, wire

from .peers import Answer, next_round
from .rounds import MalformedLine, parse_round

if TYPE_CHECKING:
    from kubeai.elastic.threads import StderrLog

    from .membership import Membership
    from .rounds import Round

_PATH = "/v1/peers"
_CALL_SECONDS = 2.0
_BETWEEN_SECONDS = 0.5
_PATIENCE_SECONDS = 45.0  # torch gives workers 30 s to end
_MAX_BODY = 4096
_MAX_CALLS = 16  # at once


class Peers:
    """Answers the other members, and asks them.

    `address` is the `HOST:PORT` at which it answers, `looks` how often it has asked.

    Args:
        host: The address of this host.
        membership: What is answered, and where a formed round is entered.
        least: The smallest number of members of a round.
        away_seconds: How long the supervisor must have been away.
        stderr: Where a formed round is written.
    """

    def __init__(
        self, host: str, membership: Membership, *, least: int, away_seconds: float, stderr: StderrLog
    ) -> None:
        self._membership = membership
        self._least = least
        self._away_seconds = away_seconds
        self._stderr = stderr
        self.looks = 0
        self._asked_at = 0.0
        self._waits_since: float | None = None
        self._server = _Server(host, membership, stderr)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_address[1]}"
        threads.start("rendezvous-peers", self._server.serve_forever, stderr)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def look(self) -> None:
        """If the supervisor is away, ask the members of the last round, and enter the next one if there is one.

        A waiting or stranded member calls it again and again; it takes a few seconds at most.
        """
        membership, now = self._membership, time.monotonic()
        last = membership.newest
        if last is None or membership.is_parked or membership.absent_seconds < self._away_seconds:
            self._waits_since = None
            return
        if now < self._asked_at + _BETWEEN_SECONDS:
            return
        self._waits_since = now if self._waits_since is None else self._waits_since
        answers = self._ask_all(last)
        self._asked_at, self.looks = time.monotonic(), self.looks + 1
        own = last.index_of(membership.state.member)
        patient = now < self._waits_since + _PATIENCE_SECONDS
        formed = None if own is None else next_round(last, own, answers, least=self._least, patient=patient)
        if formed is not None:
            how = ", in process" if formed.in_process else ""
            self._stderr.once(f"peers {formed.number}", f"no supervisor: the members form round {formed.number}{how}")
            membership.receive_from_peers(formed.number, formed)

    def _ask_all(self, last: Round) -> list[Answer]:
        state = self._membership.state

        def ask(index: int) -> Answer:
            one = last.members[index]
            if one.member == state.member:
                return _answer(self._membership)
            question = {"member": state.member, "round": last.number, "in_process": state.stranded}
            return _ask(one.address, one.member, question)

        with ThreadPoolExecutor(max_workers=min(_MAX_CALLS, len(last.members))) as pool:
            return list(pool.map(ask, range(len(last.members))))


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, membership: Membership, stderr: StderrLog) -> None:
        self.membership = membership
        self._stderr = stderr
        self.address_family, where = _bindable(host)
        super().__init__(where, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Ignore a broken connection, as the caller asks again. Any other fault costs this caller its answer."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self._stderr.fault("an answer to another member", error)


class _Handler(BaseHTTPRequestHandler):
    timeout = _CALL_SECONDS
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.close_connection = True
        membership = cast("_Server", self.server).membership
        token = self.headers.get("Authorization", "").partition("Bearer ")[2]
        if self.path != _PATH or not hmac.compare_digest(token.encode(), membership.state.member.encode()):
            self._send(HTTPStatus.UNAUTHORIZED, {"error": "bad_token", "message": "not a member of this round"})
            return
        try:
            length = int(self.headers["Content-Length"])
            asked = json.loads(self.rfile.read(min(length, _MAX_BODY)))
            left, in_process = int(asked["round"]), bool(asked.get("in_process"))
        except (ValueError, TypeError, KeyError):
            self._send(HTTPStatus.BAD_REQUEST, {"error": "malformed", "message": "no question of a member"})
            return
        if not in_process:  # Otherwise its workers are to go on; they notice the loss by themselves.
            _wake_up(membership, left)
        self._send(HTTPStatus.OK, _fields(_answer(membership)))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: the agent's output is the job's."""

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _bindable(host: str) -> tuple[int, tuple[str, int]]:
    """Return the family and the address to listen on: this host's address, or all if its name has several."""
    family, *_, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return family, (str(where[0]), 0)


def _wake_up(membership: Membership, left: int) -> None:
    """Let the agent stop its workers if another member wants to leave the round that they are in."""
    if membership.absent_seconds and not membership.state.waits and membership.state.round <= left:
        membership.receive_from_peers(left + 1)


def _answer(membership: Membership) -> Answer:
    state, told = membership.state, membership.told
    return Answer(
        reached=True,
        parked=membership.is_parked,
        waits=state.waits,
        stranded=state.stranded,
        supervised=not membership.absent_seconds,
        wanted=max(state.round, state.unreachable, 0 if told is None else told.wanted),
        known=state.known,
    )


def _fields(answer: Answer) -> dict[str, Any]:
    return {
        "parked": answer.parked,
        "waits": answer.waits,
        "stranded": answer.stranded,
        "supervised": answer.supervised,
        "wanted": answer.wanted,
        "known": None if answer.known is None else answer.known.fields(),
    }


def _ask(address: str, member: str, question: dict[str, Any]) -> Answer:
    try:
        said = wire.post(wire.CallAddress(f"http://{address}", member), _PATH, question, _CALL_SECONDS)
        known = None if said.get("known") is None else parse_round(said["known"])
        return Answer(
            reached=True,
            parked=bool(said["parked"]),
            waits=bool(said["waits"]),
            stranded=bool(said.get("stranded")),
            supervised=bool(said["supervised"]),
            wanted=int(said["wanted"]),
            known=known,
        )
    except wire.Unreachable as error:
        return Answer(gone=isinstance(error.__cause__, ConnectionRefusedError))
    except wire.CallRefused:
        # Another agent has its port: the member itself is gone.
        return Answer(gone=True)
    except (MalformedLine, ValueError, TypeError, KeyError):
        return Answer()
