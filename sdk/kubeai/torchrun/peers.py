"""Members form a round among themselves while the supervisor is away.

The lowest reachable member of the last round leads. It forms the next one of the members that wait, and the others
follow. Members whose workers have lost a rank and wait for a round in process do the same among themselves, and restart
nothing. Either happens only with more than half of the members that may still be alive, so that two parts of a divided
network never train side by side. `next_round` decides that, and is pure.

Each agent asks all others, and answers: `POST /v1/peers` with `{"member", "round", "in_process"}` names a member that
waits, or is stranded, and the round that it wants to leave. The answer has the fields of an `Answer`. The caller names
the random id of the member that it calls, which nobody else knows but the supervisor and the members of the same round.
"""

from __future__ import annotations

import hmac
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Sequence, cast

from kubeai.elastic import threads, wire

from .member import MalformedRendezvous, RendezvousRound, parse_round

if TYPE_CHECKING:
    from kubeai.elastic.threads import StderrLog

    from .member import Membership

_PATH = "/v1/peers"
_CALL_SECONDS = 2.0
_BETWEEN_SECONDS = 0.5
_PATIENCE_SECONDS = 45.0  # torch gives workers 30 s to end
_MAX_BODY = 4096
_MAX_CALLS = 16  # at once


@dataclass(frozen=True)
class PeerAnswer:
    """The answer of a member of the last round.

    Attributes:
        reached: It has answered.
        gone: Its host says that nobody listens there any more. A member that is neither may be cut off.
        parked: The supervisor has taken it off the last round: it neither leads nor follows.
        waits: It waits for a newer round.
        stranded: Its workers do, and enter it in process.
        supervised: It has a stream to the supervisor.
        wanted: The newest round it has heard of.
        known: The round that it is in.
    """

    reached: bool = False
    gone: bool = False
    parked: bool = False
    waits: bool = False
    stranded: bool = False
    supervised: bool = False
    wanted: int = 0
    known: RendezvousRound | None = None

    def fields(self) -> dict[str, Any]:
        """Return the answer as JSON, without `reached` and `gone`, which only the asking member can tell."""
        return {
            "parked": self.parked,
            "waits": self.waits,
            "stranded": self.stranded,
            "supervised": self.supervised,
            "wanted": self.wanted,
            "known": None if self.known is None else self.known.fields(),
        }


def next_round(
    last: RendezvousRound, own: int, answers: Sequence[PeerAnswer], *, least: int, patient: bool = True
) -> RendezvousRound | None:
    """Return the round that a waiting or stranded member enters: one that another has formed, or one that it leads.

    Args:
        last: The newest round whose members are known.
        own: The index of this member in it.
        answers: Of each member of it, with its own answer at `own`.
        least: The smallest number of members of a round.
        patient: Wait also for members that still run, and were asked to wait.

    Returns:
        None while there is no such round, and where the supervisor decides.
    """
    if any(answer.supervised for answer in answers):
        return None
    member = last.members[own].member
    formed = [
        one.known
        for one in answers
        if one.known is not None
        and one.known.number > last.number
        and one.known.index_of(member) is not None
        and one.known.store
    ]
    if formed:
        return max(formed, key=lambda one: one.number)
    reached = [index for index, answer in enumerate(answers) if answer.reached and not answer.parked]
    waiting = [index for index in reached if answers[index].waits]
    stranded = [index for index in reached if answers[index].stranded]
    in_process = answers[own].stranded
    together, awaited = (stranded, sorted((*waiting, *stranded))) if in_process else (waiting, waiting)
    if own != min(stranded if in_process else reached, default=None) or (patient and awaited != reached):
        return None
    # More than half of the members that may train, or half of them with the lowest.
    present = [index for index, answer in enumerate(answers) if not (answer.gone or answer.parked)]
    is_half = 2 * len(together) == len(present) and present[0] in together
    if len(together) < least or not (2 * len(together) > len(present) or is_half):
        return None
    number = max(last.number, *(answer.wanted for answer in answers)) + 1
    return RendezvousRound(number, tuple(last.members[index] for index in together), in_process=in_process)


class PeerLink:
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
        self._server = _PeerServer(host, membership, stderr)
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

    def _ask_all(self, last: RendezvousRound) -> list[PeerAnswer]:
        state = self._membership.state

        def ask(index: int) -> PeerAnswer:
            one = last.members[index]
            if one.member == state.member:
                return _answer(self._membership)
            question = {"member": state.member, "round": last.number, "in_process": state.stranded}
            return _ask(one.address, one.member, question)

        with ThreadPoolExecutor(max_workers=min(_MAX_CALLS, len(last.members))) as pool:
            return list(pool.map(ask, range(len(last.members))))


class _PeerServer(ThreadingMixIn, TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, host: str, membership: Membership, stderr: StderrLog) -> None:
        self.membership = membership
        self._stderr = stderr
        # This host's address, or all if its name has several.
        self.address_family, *_, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        super().__init__((str(where[0]), 0), _PeerHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Ignore a broken connection, as the caller asks again. Any other fault costs this caller its answer."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):
            self._stderr.fault("an answer to another member", error)


class _PeerHandler(BaseHTTPRequestHandler):
    timeout = _CALL_SECONDS
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.close_connection = True
        membership = cast("_PeerServer", self.server).membership
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
        state = membership.state
        # If another member wants to leave the round that the workers are in, they must stop, unless they are to go on
        # in process; then they notice the loss by themselves.
        if not in_process and membership.absent_seconds and not state.waits and state.round <= left:
            membership.receive_from_peers(left + 1)
        self._send(HTTPStatus.OK, _answer(membership).fields())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing: the agent's output is the job's."""

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _answer(membership: Membership) -> PeerAnswer:
    state, told = membership.state, membership.told
    return PeerAnswer(
        reached=True,
        parked=membership.is_parked,
        waits=state.waits,
        stranded=state.stranded,
        supervised=not membership.absent_seconds,
        wanted=max(state.round, state.unreachable, 0 if told is None else told.wanted),
        known=state.known,
    )


def _ask(address: str, member: str, question: dict[str, Any]) -> PeerAnswer:
    try:
        said = wire.post(wire.CallAddress(f"http://{address}", member), _PATH, question, _CALL_SECONDS)
        known = None if said.get("known") is None else parse_round(said["known"])
        return PeerAnswer(
            reached=True,
            parked=bool(said["parked"]),
            waits=bool(said["waits"]),
            stranded=bool(said.get("stranded")),
            supervised=bool(said["supervised"]),
            wanted=int(said["wanted"]),
            known=known,
        )
    except wire.Unreachable as error:
        return PeerAnswer(gone=isinstance(error.__cause__, ConnectionRefusedError))
    except wire.CallRefused:
        # Another agent has its port: the member itself is gone.
        return PeerAnswer(gone=True)
    except (MalformedRendezvous, ValueError, TypeError, KeyError):
        return PeerAnswer()
