"""The agents and the last answers of their sources. They are not stored: every hello repeats them."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine
from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import API_SOURCES, NoticeState, ReclaimNotice, SubjectKind


class SourceState(StrEnum):
    """A source's last answer; UNKNOWN is neither "no notice" nor "reclaimed".

    NOT_SPOT: the source is not polled, because the machine cannot be reclaimed.
    """

    UNKNOWN = "unknown"
    CLEAR = "clear"
    NOTICED = "noticed"
    NOT_SPOT = "not_spot"


SILENCE_SECONDS = 90.0
"""How much later than the end of its node an agent may fall silent: pings detect it within 70 s."""

_NONE_ANNOUNCED = frozenset({SourceState.CLEAR, SourceState.NOT_SPOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """One node's agent. `uid` is the machine's own id. The sources of a disconnected agent are all unknown.

    `pod_sources` report pods only; clear means that they see all pods of the node. `machine` is what the agent said of
    it last; it stays so while the agent is silent. `stream` numbers the streams of a session; 0 for older agents.
    """

    node: Host
    uid: str
    session: int
    connected: bool
    stream: int = 0
    sources: Mapping[Source, SourceState] = field(default_factory=dict)
    pod_sources: Mapping[Source, SourceState] = field(default_factory=dict)
    machine: Machine = UNKNOWN_MACHINE

    def is_older_than(self, known: "AgentState") -> bool:
        """Whether its hello comes after one that was said later: of a higher session, or on a later stream."""
        if self.session != known.session:
            return self.session < known.session
        return 0 < self.stream <= known.stream

    @property
    def clear(self) -> bool:
        """Whether every source answered that there is no notice, or can have none."""
        return self.connected and bool(self.sources) and _NONE_ANNOUNCED.issuperset(self.sources.values())

    def is_clear_but_for(self, sources: Container[Source]) -> bool:
        """Whether no source but these announces anything, and each of the others answered."""
        known = (
            state in _NONE_ANNOUNCED or (state is SourceState.NOTICED and source in sources)
            for source, state in self.sources.items()
        )
        return self.connected and bool(self.sources) and all(known)

    @property
    def denies(self) -> bool:
        """Whether the agent is clear because at least one source was polled."""
        return self.clear and SourceState.CLEAR in self.sources.values()


def reclaimed(
    notices: Iterable[ReclaimNotice], agents: Mapping[Host, AgentState], silent_since: Callable[[Host], float | None]
) -> frozenset[Host]:
    """The nodes whose agents are silent because their machines are gone, as a notice on each has ended in `gone`.

    The state of other silent agents is unknown, also of a later machine with the name of one that is gone.
    """
    ended = [notice for notice in notices if notice.state is NoticeState.GONE]
    return frozenset(Host(notice.subject.name) for notice in ended if _explains(notice, agents, silent_since))


def _explains(
    notice: ReclaimNotice, agents: Mapping[Host, AgentState], silent_since: Callable[[Host], float | None]
) -> bool:
    node = Host(notice.subject.name)
    agent, since = agents.get(node), silent_since(node)
    if agent is None or since is None or notice.ended_at is None or notice.subject.kind is not SubjectKind.NODE:
        return False
    # Notices of the API server contain the uid of the Node object, which is not the machine's.
    same_machine = notice.source in API_SOURCES or notice.subject.uid == agent.uid
    return same_machine and since <= notice.ended_at + SILENCE_SECONDS


class AgentRegistry:
    """The agents by node.

    A stream is identified by any object. An agent that reconnects has a new stream, and the end of the old one, which
    may be detected much later, must not disconnect it.

    Args:
        on_change: Called after every change.
        now: Unix seconds.

    Attributes:
        version: Grows with every change.
    """

    def __init__(self, on_change: Callable[[], None], now: Callable[[], float]) -> None:
        self._agents: dict[Host, AgentState] = {}
        self._streams: dict[Host, object] = {}
        # Indexes, updated with every change: 5,000 agents are too many to scan for each decision.
        self._uids: dict[Host, str] = {}
        self._nodes: dict[str, set[Host]] = {}
        self._clear: set[Host] = set()
        self._denying: set[Host] = set()
        self._silent: dict[Host, float] = {}
        self._heard: dict[Host, float] = {}
        self._synced: dict[Host, float] = {}
        self._on_change = on_change
        self._now = now
        self._started = now()
        self.version = 0

    def connect(self, view: AgentState, stream: object) -> AgentState | None:
        """Adds an agent, or returns the later one that is already known for its node."""
        known = self._agents.get(view.node)
        if known is not None and view.is_older_than(known):
            return known
        self._streams[view.node] = stream
        self._synced.pop(view.node, None)
        self._put(view)
        return None

    def mark_synced(self, node: Host, stream: object) -> None:
        """Marks that the whole hello is processed, unless the node has a newer stream."""
        if self.is_current(node, stream):
            self._synced[node] = self._now()
            self._on_change()

    def source(self, node: Host, stream: object, source: Source, state: SourceState) -> None:
        """Updates the state of a source, unless the node has a newer stream."""
        if self.is_current(node, stream):
            known = self._agents[node]
            self._put(replace(known, sources={**known.sources, source: state}))

    def pod_source(self, node: Host, stream: object, source: Source, state: SourceState) -> None:
        """Updates the state of a source that reports pods, unless the node has a newer stream."""
        if self.is_current(node, stream):
            known = self._agents[node]
            self._put(replace(known, pod_sources={**known.pod_sources, source: state}))

    def describe(self, node: Host, stream: object, machine: Machine) -> None:
        """Updates what the agent knows of its machine, unless the node has a newer stream."""
        if self.is_current(node, stream):
            self._put(replace(self._agents[node], machine=machine))

    def disconnect(self, node: Host, stream: object, heard: float | None = None) -> None:
        """Handles the end of a stream: the node's sources become unknown, unless it has a newer stream.

        Args:
            node: The agent's node.
            stream: The stream that has ended.
            heard: When the agent last gave a sign of life, in Unix seconds; None for now.
        """
        if self.is_current(node, stream):
            del self._streams[node]
            self._synced.pop(node, None)
            self._silent[node] = self._now()
            self._heard[node] = self._now() if heard is None else heard
            known = self._agents[node]
            self._put(
                replace(
                    known,
                    connected=False,
                    sources=dict.fromkeys(known.sources, SourceState.UNKNOWN),
                    pod_sources=dict.fromkeys(known.pod_sources, SourceState.UNKNOWN),
                )
            )

    def forget(self, before: float) -> None:
        """Forgets nodes that have been silent since before an instant: the names of spot nodes are rarely reused."""
        for node in [node for node, since in self._silent.items() if since < before]:
            del self._silent[node], self._heard[node]
            if not self.connected(node):
                del self._agents[node]

    def is_current(self, node: Host, stream: object) -> bool:
        """Whether this is the node's present stream."""
        return self._streams.get(node) is stream

    def session(self, node: Host) -> int:
        """The highest known session of the node's agent; 0 if there is none."""
        return self._agents[node].session if node in self._agents else 0

    def silent_since(self, node: Host) -> float | None:
        """Since when the node's agent has no stream, at the earliest this process's start; None while it has one."""
        return None if self.connected(node) else self._silent.get(node, self._started)

    def heard_at(self, node: Host) -> float | None:
        """When the node's silent agent last gave a sign of life, which is before its stream ended."""
        return None if self.connected(node) else self._heard.get(node)

    def synced_since(self, node: Host) -> float | None:
        """Since when the agent's last hello is completely processed; None while it is not."""
        return self._synced.get(node)

    def all(self) -> Mapping[Host, AgentState]:
        """Every agent that has connected to this process and is not forgotten."""
        return self._agents

    def connected(self, node: Host) -> bool:
        """Whether the node's agent has a stream."""
        return node in self._agents and self._agents[node].connected

    def uids(self) -> Mapping[Host, str]:
        """The machine uids of connected agents."""
        return self._uids

    def sharing(self) -> Mapping[Host, Sequence[Host]]:
        """The nodes whose connected agents report the machine uid of other nodes, each with those other nodes.

        The cause is a copied setting, two metadata services with the same instance id, or malice.
        """
        shared = [nodes for nodes in self._nodes.values() if len(nodes) > 1]
        return {node: sorted(nodes - {node}) for nodes in shared for node in nodes}

    def others(self, node: Host) -> Sequence[Host]:
        """The other nodes whose connected agents report the machine uid of this node."""
        return sorted(self._nodes.get(self._uids.get(node, ""), set()) - {node})

    def denying(self) -> Container[Host]:
        """The nodes whose own metadata service answers at present that there is no notice."""
        return self._denying

    def unknown_sources(self, node: Host) -> Sequence[Source] | None:
        """The sources of a node that have no known answer at present; None if no agent is connected."""
        if not self.connected(node):
            return None
        return sorted(source for source, state in self._agents[node].sources.items() if state is SourceState.UNKNOWN)

    def clear(self) -> Collection[Host]:
        """The nodes that are known to have no notice; a live view."""
        return self._clear

    def available(self) -> frozenset[Host]:
        """The nodes that are known to have no notice."""
        return frozenset(self._clear)

    def _put(self, view: AgentState) -> None:
        self._agents[view.node] = view
        self._put_uid(view.node, view.uid if view.connected else None)
        if view.clear:
            self._clear.add(view.node)
        else:
            self._clear.discard(view.node)
        if view.denies:
            self._denying.add(view.node)
        else:
            self._denying.discard(view.node)
        self.version += 1
        self._on_change()

    def _put_uid(self, node: Host, uid: str | None) -> None:
        before = self._uids.pop(node, None)
        if before is not None and before != uid:
            self._nodes[before].discard(node)
            if not self._nodes[before]:
                del self._nodes[before]
        if uid is not None:
            self._uids[node] = uid
            self._nodes.setdefault(uid, set()).add(node)
