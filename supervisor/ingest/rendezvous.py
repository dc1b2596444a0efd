"""The endpoints for torchrun's elastic agents: the stream of rounds, and reports of what an agent does."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from servicekit.clock import Clock
from supervisor.decide.registration import OlderRevisionError
from supervisor.decide.situation import KnownRound, Member, StoreAddress
from supervisor.domain.ids import Host
from supervisor.fanout.lines import LineStream
from supervisor.fanout.members import MemberId, MemberStreams
from supervisor.identity.tokens import Process
from supervisor.ingest.errors import TooManyError
from supervisor.ingest.http import Authenticate, body, done, printable, require_principal
from supervisor.ingest.processes import Count, Text
from supervisor.ingest.senders import sender_run
from supervisor.refusals import Refusals
from supervisor.store.interface import Store

_MAX_BYTES = 512 * 1024
_MAX_MEMBERS = 5000

Port = Annotated[int, Meta(ge=1, le=65535)]


class HeldStore(msgspec.Struct, frozen=True, kw_only=True):
    """The store that a member holds."""

    round: Count
    address: Text
    port: Port


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The round that a member is in."""

    number: Count
    hosts: Annotated[list[Text], Meta(max_length=_MAX_MEMBERS)]
    in_process: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a member; see `supervisor.decide.situation.Member`."""

    processes: Annotated[int, Meta(ge=1, le=1024)]
    address: Text
    round: Count = 0
    waits: bool = False
    failed: bool = False
    store: HeldStore | None = None
    unreachable: Count = 0
    ready: Count = 0
    started: bool = False
    ended: bool = False
    known: Known | None = None

    def __post_init__(self) -> None:
        printable("address", self.address)

    def of(self, member: str, since: float) -> Member:
        """The member in this state, connected since then (Unix seconds)."""
        store, known = self.store, self.known
        return Member(
            member=member,
            since=since,
            processes=self.processes,
            address=self.address,
            round=self.round,
            waits=self.waits,
            failed=self.failed,
            store=None if store is None else StoreAddress(store.round, store.address, store.port),
            unreachable=self.unreachable,
            ready=self.ready,
            started=self.started,
            ended=self.ended,
            known=None
            if known is None
            else KnownRound(
                number=known.number, hosts=tuple(Host(each) for each in known.hosts), in_process=known.in_process
            ),
        )


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first and only message of a member's stream."""

    member: Text
    host: Text
    run: Count | None = None
    state: State

    def __post_init__(self) -> None:
        printable("member", self.member)
        printable("host", self.host)


class Report(Hello, frozen=True, kw_only=True):
    """What a member does now; `revision` grows with each report of a member."""

    revision: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousEndpoints:
    """`/v1/rendezvous/…`."""

    store: Store
    members: MemberStreams
    refusals: Refusals
    authenticate: Authenticate
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/rendezvous/stream", self.stream), web.post("/v1/rendezvous/report", self.report)]

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Sends the present rounds until either side ends."""
        principal = await require_principal(Process, request, self.authenticate)
        hello = await body(request, Hello, _MAX_BYTES)
        sender = self._sender(principal, hello)
        if self.members.count(sender.job) >= _MAX_MEMBERS:
            raise TooManyError(f"{sender.job.name} has the maximum number of elastic agents")
        lines = LineStream(request, self.refusals)
        await lines.prepare()
        self.members.attach(sender, self._member(sender, hello.state), lines)
        try:
            return await lines.serve()
        finally:
            self.members.detach(sender, lines)

    async def report(self, request: web.Request) -> web.Response:
        """Takes the state of a member over."""
        principal = await require_principal(Process, request, self.authenticate)
        sent = await body(request, Report, _MAX_BYTES)
        sender = self._sender(principal, sent)
        if not self.members.report(sender, self._member(sender, sent.state), sent.revision):
            raise OlderRevisionError("the elastic agent has no stream, or has reported something newer")
        return done()

    def _member(self, sender: MemberId, state: State) -> Member:
        since = self.members.since(sender)
        return state.of(sender.member, self.clock.now() if since is None else since)

    def _sender(self, principal: Process, message: Hello) -> MemberId:
        """The member that sent a message. Its token may name its host. Raises as `sender_run`."""
        job, run = sender_run(self.store, principal, message.run)
        return MemberId(job, run, principal.host or Host(message.host), message.member)
