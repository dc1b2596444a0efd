"""Delays derived from sent notices, decisions and received directives. All instants are CLOCK_MONOTONIC."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.clients.agents import NoticeSent
from benchmarks.clients.streams import DirectiveReceived
from benchmarks.harness.decisions import LoggedDecision

_STOPPING = "Stopping"
_SHRINKING = "Shrinking"
_SUSPENDED = "Suspended"


@dataclass(frozen=True, slots=True)
class DelayedPeer:
    """The process of a stream. A stream's number is its index in the list of peers."""

    job: str
    host: str
    rank: int


class MissingLineError(AssertionError):
    """A process never received a required line, which is lost, not slow."""


def fanout_delays(
    decisions: Sequence[LoggedDecision], received: Sequence[DirectiveReceived], peers: Sequence[DelayedPeer]
) -> list[float]:
    """Return the delays from the commit of a decision to its line at each process concerned.

    Raises:
        MissingLineError: A process received none.
    """
    return [*_stop_delays(decisions, received, peers), *_checkpoint_delays(decisions, received, peers)]


def rank_zero_delays(
    sent: Iterable[NoticeSent], received: Iterable[DirectiveReceived], peers: Sequence[DelayedPeer], spare: int
) -> list[float]:
    """Return the delays from the notice that meant a job's STOP to that line at its rank 0.

    A job can lose `spare` hosts, so the next notice means STOP.
    """
    notices: dict[str, list[float]] = {}
    jobs = {peer.host: peer.job for peer in peers}
    for notice in sent:
        notices.setdefault(jobs[notice.node], []).append(notice.at)
    stops = _first(line for line in received if line.directive == "STOP" and peers[line.stream].rank == 0)
    return [stops[stream] - sorted(notices[peers[stream].job])[spare] for stream in stops]


def noticed_delays(
    sent: Iterable[NoticeSent], received: Iterable[DirectiveReceived], peers: Sequence[DelayedPeer]
) -> list[float]:
    """Return the delays from a node's notice to the line that shows it, for every process of that node.

    Raises:
        MissingLineError: A process received none.
    """
    own = [f"metadata/{peer.host}/" for peer in peers]
    received_at = _first(line for line in received if line.notice.startswith(own[line.stream]))
    at = {notice.node: notice.at for notice in sent}
    expected = [(stream, at[peer.host]) for stream, peer in enumerate(peers) if peer.host in at]
    return list(_delays(expected, received_at, "a notice of its own node"))


def job_stopped_at(decisions: Iterable[LoggedDecision], job: str) -> float:
    """Return when all processes of a job were told to stop: it is suspended, because rank 0 has acknowledged.

    Raises:
        MissingLineError: It never was.
    """
    for decision in decisions:
        if decision.job == job and decision.phase == _SUSPENDED:
            return decision.at
    raise MissingLineError(f"{job} was never stopped for all processes")


def _stop_delays(
    decisions: Sequence[LoggedDecision], received: Sequence[DirectiveReceived], peers: Sequence[DelayedPeer]
) -> Iterator[float]:
    stops = _first(line for line in received if line.directive == "STOP")
    first: dict[str, float] = {}
    for decision in decisions:
        if decision.phase == _STOPPING:
            first.setdefault(decision.job, decision.at)
    everyone = {job: job_stopped_at(decisions, job) for job in first}
    expected = [
        (stream, first[peer.job] if peer.rank == 0 else everyone[peer.job])
        for stream, peer in enumerate(peers)
        if peer.job in first
    ]
    return _delays(expected, stops, "STOP")


def _checkpoint_delays(
    decisions: Iterable[LoggedDecision], received: Sequence[DirectiveReceived], peers: Sequence[DelayedPeer]
) -> Iterator[float]:
    """A process on an excluded host gets a LEAVE instead, which is not measured here."""
    asked: dict[int, list[DirectiveReceived]] = {}
    for line in received:
        if line.directive == "CHECKPOINT":
            asked.setdefault(line.generation, []).append(line)
    leaves = {(line.generation, line.stream) for line in received if line.directive == "LEAVE"}
    for decision in decisions:
        if decision.phase == _SHRINKING and decision.generation in asked:
            received_at = _first(asked[decision.generation])
            leaving = {stream for generation, stream in leaves if generation <= decision.generation}
            expected = [
                (s, decision.at) for s, peer in enumerate(peers) if peer.job == decision.job and s not in leaving
            ]
            yield from _delays(expected, received_at, "CHECKPOINT")


def _first(received: Iterable[DirectiveReceived]) -> dict[int, float]:
    """Return when each stream received the first of these lines."""
    found: dict[int, float] = {}
    for line in received:
        found[line.stream] = min(line.at, found.get(line.stream, line.at))
    return found


def _delays(expected: Iterable[tuple[int, float]], received_at: dict[int, float], line: str) -> Iterator[float]:
    for stream, since in expected:
        if stream not in received_at:
            raise MissingLineError(f"stream {stream} never received {line}")
        yield received_at[stream] - since
