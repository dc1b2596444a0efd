"""A fake coordinator for tests of jobs under torchrun with the backend `kubeai`.

`FakeCoordinator` is a `FakeSupervisor` that also speaks with elastic agents. It decides nothing: the test forms each
round. It takes no silent agent for a lost one, and its members may lie.

    with FakeCoordinator() as coordinator:
        coordinator.write_identity(directory)              # KUBEAI_DIR of the agents and their workers
        ...start torchrun on "node1" and "node2" (KUBEAI_HOST)...
        coordinator.form("node1", "node2")                 # waits until both wait; round 1
        ...
        coordinator.form("node1")                          # node2 parks
        coordinator.release(0)                             # and exits with code 0
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kubeai.elastic.testing import FakeStream, FakeSupervisor

from .member import RendezvousRound, RoundMember, RoundStoreAddress

if TYPE_CHECKING:
    from kubeai.elastic.testing import Line, Message, Reply

_STREAM, _REPORT = "/v1/rendezvous/stream", "/v1/rendezvous/report"


class FakeCoordinator(FakeSupervisor):
    """A fake supervisor of elastic agents and of their workers."""

    def __init__(self, heartbeat: float = 1.0) -> None:
        super().__init__(heartbeat)
        self._rounds: list[RendezvousRound] = []
        self._states: dict[str, Line] = {}
        self._starting: set[str] = set()
        self._released: int | None = None

    @property
    def members(self) -> dict[str, Line]:
        """The last state of each connected elastic agent, by host."""
        with self._changed:
            return {stream.hello["host"]: self._states[stream.hello["member"]] for stream in self._members()}

    def form(self, *hosts: str, in_process: bool = False, seconds: float = 120.0) -> RendezvousRound:
        """Form the next round of these hosts, in this order, and return it. It has no store yet.

        Before, wait until all of them wait for a round or, in process, train or have started to join. Raises
        TimeoutError.
        """

        def can_enter(host: str) -> bool:
            state = self.members.get(host)
            if state is None:
                return False
            trains = state["round"] == len(self._rounds) and not state["failed"]
            return (state["started"] or trains) if in_process else state["waits"] or trains

        self.wait_for(lambda: all(map(can_enter, hosts)), seconds)
        return self.decide(*hosts, in_process=in_process)

    def decide(self, *hosts: str, in_process: bool = False) -> RendezvousRound:
        """Form the next round of these connected hosts without waiting for them: running ones restart for it."""
        with self._changed:
            number = len(self._rounds) + 1
            members = []
            for host in hosts:
                hello = next(one.hello for one in reversed(self._members()) if one.hello["host"] == host)
                state = self._states[hello["member"]]
                members.append(RoundMember(hello["member"], host, state["address"], state["processes"]))
            self._rounds.append(RendezvousRound(number, tuple(members), in_process))
            self._starting.difference_update(hosts)
            self._tell()
            return self._rounds[-1]

    def start_to_join(self, host: str) -> None:
        """Let a waiting host start its workers, which join the next round in process."""
        with self._changed:
            self._starting.add(host)
            self._tell()

    def release(self, code: int) -> None:
        """Let all waiting members exit with this code."""
        with self._changed:
            self._released = code
            self._tell()

    def all_ready(self, number: int) -> bool:
        """Return whether the workers of all members train in this round, which was formed in process."""
        states = self.members
        return all(states.get(one.host, {}).get("ready", 0) >= number for one in self._rounds[number - 1].members)

    def _granted(self, call: Message) -> Reply:
        if call.path not in (_STREAM, _REPORT):
            return super()._granted(call)
        self._states[call.body["member"]] = call.body["state"]
        store, newest = call.body["state"]["store"], self._rounds[-1] if self._rounds else None
        if store is not None and newest is not None and newest.store is None:
            holder = (newest.number, newest.members[0].member)
            if holder == (store["round"], call.body["member"]):
                self._rounds[-1] = replace(newest, store=RoundStoreAddress(store["address"], store["port"]))
                self._tell()
        if call.path == _REPORT:
            self.reports.append(call)
            return {}
        self.hellos.append(call)
        stream = FakeStream(dict(call.body), call.token)
        self._streams.append(stream)
        stream.send_line(self._line(stream))
        return stream

    def _members(self) -> list[FakeStream]:
        return [stream for stream in self._streams if "member" in stream.hello]

    def _tell(self) -> None:
        for stream in self._members():
            stream.send_line(self._line(stream))

    def _line(self, stream: FakeStream) -> Line:
        _, job, run = stream.token.split(":")
        own = [one for one in self._rounds if one.index_of(stream.hello["member"]) is not None]
        about: dict[str, Any] = {"job": job, "run": int(run), "generation": len(self._rounds)}
        return {
            "type": "rendezvous",
            **about,
            "reason": "sent by a test",
            "wanted": len(self._rounds),
            "round": own[-1].fields() if own else None,
            "starts": stream.hello["host"] in self._starting,
            "release": self._released,
        }
