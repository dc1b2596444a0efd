"""Keeps the facts that only the streams of agents show: the agents, and notices that cannot be stored yet.

Nothing here is stored, because every hello repeats it.
"""

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from servicekit.clock import Clock
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine
from supervisor.domain.ids import Host, NoticeId, Source
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

    `pod_sources` report pods only; clear means that they see all pods of the node. `machine` is what the agent reported
    of it last; it stays so while the agent is silent. `stream` numbers the streams of a session; 0 for older agents.
    """

    node: Host
    uid: str
    session: int
    connected: bool
    stream: int = 0
    sources: Mapping[Source, SourceState] = field(default_factory=dict)
    pod_sources: Mapping[Source, SourceState] = field(default_factory=dict)
    machine: Machine = UNKNOWN_MACHINE

    def is_clear_but_for(self, sources: Container[Source]) -> bool:
        """Whether each other source has answered that it announces nothing."""
        known = (
            state in _NONE_ANNOUNCED or (state is SourceState.NOTICED and source in sources)
            for source, state in self.sources.items()
        )
        return self.connected and bool(self.sources) and all(known)


def reclaimed(
    notices: Iterable[ReclaimNotice], agents: Mapping[Host, AgentState], silent_since: Callable[[Host], float | None]
) -> frozenset[Host]:
    """Returns the nodes whose agents are silent because the machine is gone, as an ended notice (`gone`) shows.

    The state of other silent agents is unknown, also of a later machine with the name of one that is gone.
    """
    found = set()
    for notice in notices:
        if notice.state is not NoticeState.GONE or notice.subject.kind is not SubjectKind.NODE:
            continue
        node = Host(notice.subject.name)
        agent, since = agents.get(node), silent_since(node)
        if agent is None or since is None or notice.ended_at is None:
            continue
        # Notices of the API server contain the uid of the Node object, which is not the machine's.
        same_machine = notice.source in API_SOURCES or notice.subject.uid == agent.uid
        if same_machine and since <= notice.ended_at + SILENCE_SECONDS:
            found.add(node)
    return frozenset(found)


class AgentRegistry:
    """The agents by node.

    A stream is identified by any object. An agent that reconnects has a new stream, and the end of the old one, which
    may be detected much later, must not disconnect it.

    Args:
        on_change: Called after every change.
        now: Unix seconds.

    Attributes:
        version: Grows with every change.
        by_node: Every agent that has connected to this process and is not forgotten.
        uids: The machine uids of connected agents.
        clear: The nodes of which every source answered that there is no notice, or can have none.
        denying: The clear nodes of which at least one source was polled.
        synced: Since when the last hello of an agent is completely processed, in Unix seconds; not while it is not.
    """

    def __init__(self, on_change: Callable[[], None], now: Callable[[], float]) -> None:
        self.version = 0
        self.by_node: dict[Host, AgentState] = {}
        # Indexes, updated with every change: 5,000 agents are too many to scan for each decision.
        self.uids: dict[Host, str] = {}
        self.clear: set[Host] = set()
        self.denying: set[Host] = set()
        self._nodes: dict[str, set[Host]] = {}
        self._streams: dict[Host, object] = {}
        self._silent: dict[Host, float] = {}
        self._heard: dict[Host, float] = {}
        self.synced: dict[Host, float] = {}
        self._on_change = on_change
        self._now = now
        self._started = now()

    def connect(self, view: AgentState, stream: object) -> AgentState | None:
        """Adds an agent, or returns the known one whose hello is later: of a higher session, or on a later stream."""
        known = self.by_node.get(view.node)
        if known is not None and (
            view.session < known.session or (view.session == known.session and 0 < view.stream <= known.stream)
        ):
            return known
        self._streams[view.node] = stream
        self.synced.pop(view.node, None)
        self._put(view)
        return None

    def is_current(self, node: Host, stream: object) -> bool:
        """Whether this is the node's present stream."""
        return self._streams.get(node) is stream

    def mark_synced(self, node: Host, stream: object) -> None:
        """Marks that the whole hello is processed, unless the node has a newer stream."""
        if self.is_current(node, stream):
            self.synced[node] = self._now()
            self._on_change()

    def put_source(
        self, node: Host, stream: object, source: Source, state: SourceState, *, about_pods: bool = False
    ) -> None:
        """Updates the state of a source, unless the node has a newer stream."""
        if not self.is_current(node, stream):
            return
        known = self.by_node[node]
        if about_pods:
            self._put(replace(known, pod_sources={**known.pod_sources, source: state}))
        else:
            self._put(replace(known, sources={**known.sources, source: state}))

    def put_machine(self, node: Host, stream: object, machine: Machine) -> None:
        """Updates the description of the machine, unless the node has a newer stream."""
        if self.is_current(node, stream):
            self._put(replace(self.by_node[node], machine=machine))

    def disconnect(self, node: Host, stream: object, heard: float | None = None) -> None:
        """Handles the end of a stream: the node's sources become unknown, unless it has a newer stream.

        Args:
            node: The agent's node.
            stream: The stream that has ended.
            heard: When the agent last gave a sign of life, in Unix seconds; None for now.
        """
        if not self.is_current(node, stream):
            return
        del self._streams[node]
        self.synced.pop(node, None)
        self._silent[node] = self._now()
        self._heard[node] = self._now() if heard is None else heard
        known = self.by_node[node]
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
            if node not in self._streams:
                del self.by_node[node]

    def connected(self, node: Host) -> bool:
        """Whether the node's agent has a stream."""
        return node in self._streams

    def silent_since(self, node: Host) -> float | None:
        """Returns since when the agent has no stream, or the start of this process if later; None while it has one."""
        return None if node in self._streams else self._silent.get(node, self._started)

    def heard_at(self, node: Host) -> float | None:
        """Returns when the node's silent agent last gave a sign of life, which is before its stream ended."""
        return None if node in self._streams else self._heard.get(node)

    def unknown_sources(self, node: Host) -> Sequence[Source] | None:
        """Returns the sources of a node that have no known answer at present; None if no agent is connected."""
        if node not in self._streams:
            return None
        return sorted(source for source, state in self.by_node[node].sources.items() if state is SourceState.UNKNOWN)

    def sharing(self) -> Mapping[Host, Sequence[Host]]:
        """Returns the nodes whose connected agents report the machine uid of other nodes, each with those other nodes.

        The cause is a copied setting, two metadata services with the same instance id, or malice.
        """
        shared = [nodes for nodes in self._nodes.values() if len(nodes) > 1]
        return {node: sorted(nodes - {node}) for nodes in shared for node in nodes}

    def others(self, node: Host) -> Sequence[Host]:
        """Returns the other nodes whose connected agents report the machine uid of this node."""
        return sorted(self._nodes.get(self.uids.get(node, ""), set()) - {node})

    def _put(self, view: AgentState) -> None:
        """Replaces the state of an agent and updates the indexes."""
        node = view.node
        self.by_node[node] = view
        before = self.uids.pop(node, None)
        if before is not None and (before != view.uid or not view.connected):
            self._nodes[before].discard(node)
            if not self._nodes[before]:
                del self._nodes[before]
        if view.connected:
            self.uids[node] = view.uid
            self._nodes.setdefault(view.uid, set()).add(node)
        is_clear = view.is_clear_but_for(())
        denies = is_clear and SourceState.CLEAR in view.sources.values()
        for nodes, belongs in ((self.clear, is_clear), (self.denying, denies)):
            if belongs:
                nodes.add(node)
            else:
                nodes.discard(node)
        self.version += 1
        self._on_change()


class UnconfirmedNotices:
    """The notices that cannot be stored at present, with the values that they will have.

    The affected processes are told about them, but no decision uses them. They end with the stream that announced them,
    because the agent repeats them in its next hello.

    Args:
        on_change: Called after every change.
        clock: The supervisor's clock.

    Attributes:
        version: Grows with every change.
        caught_up_at: When a waiting notice was last stored (Unix seconds; 0: never).
    """

    def __init__(self, on_change: Callable[[], None], clock: Clock) -> None:
        self._notices: dict[NoticeId, tuple[object, ReclaimNotice]] = {}
        self._on_change = on_change
        self._clock = clock
        self._next_durable = asyncio.Event()
        self.version = 0
        self.caught_up_at = 0.0

    def all(self) -> Collection[ReclaimNotice]:
        """Returns all waiting notices."""
        return [notice for _, notice in self._notices.values()]

    def __contains__(self, key: object) -> bool:
        return key in self._notices

    def put(self, stream: object, key: NoticeId, notice: ReclaimNotice | None) -> None:
        """Sets the value that a stream's last report gives a notice.

        It keeps an active notice, and removes another one.
        """
        if notice is not None and notice.state is NoticeState.ACTIVE:
            self._notices[key] = (stream, notice)
            self.version += 1
            self._on_change()
        else:
            self.drop(stream, key)

    def durable(self, stream: object, key: NoticeId) -> None:
        """Removes a stored notice. It wakes `wait`, because the other notices can probably be stored as well."""
        self.caught_up_at = self._clock.now()
        self.drop(stream, key)
        self._next_durable.set()
        self._next_durable = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Waits until a waiting notice was stored, but at most for some seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._next_durable.wait()
        except TimeoutError:
            pass

    def drop(self, stream: object, key: NoticeId) -> None:
        """Removes a notice of this stream."""
        if key in self._notices and self._notices[key][0] is stream:
            del self._notices[key]
            self.version += 1
            self._on_change()

    def end(self, stream: object) -> None:
        """Removes all notices of a stream that has ended."""
        for key in [key for key, (owner, _) in self._notices.items() if owner is stream]:
            self.drop(stream, key)
