"""Serves torchrun's elastic agents over HTTP: the stream of rounds, and the reports of each member's state."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from servicekit.clock import Clock
from supervisor.decide.registration import OlderRevisionError
from supervisor.decide.situation import KnownRound, Member, RoundStore
from supervisor.domain.ids import Host
from supervisor.fanout.lines import LineResponse
from supervisor.fanout.members import MemberId, MemberStreams
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.ingest.errors import TooManyError
from supervisor.ingest.http import Authenticate, PrintableBody, body, require_principal
from supervisor.ingest.launchers import Count
from supervisor.ingest.processes import Text, sender_run
from supervisor.refusals import Refusals
from supervisor.store.interface import Store

_MAX_BYTES = 512 * 1024
_MAX_MEMBERS = 5000

Port = Annotated[int, Meta(ge=1, le=65535)]


class MemberStore(msgspec.Struct, frozen=True, kw_only=True):
    """The store that a member has opened for a round."""

    round: Count
    address: Text
    port: Port


class MemberRound(msgspec.Struct, frozen=True, kw_only=True):
    """The round that a member is in."""

    number: Count
    hosts: Annotated[list[Text], Meta(min_length=1, max_length=_MAX_MEMBERS)]
    in_process: bool = False

    def __post_init__(self) -> None:
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError("hosts must name each host once")


class MemberStateBody(PrintableBody, frozen=True, kw_only=True):
    """The whole state of a member; see `supervisor.decide.situation.Member`."""

    PRINTABLE = ("address",)

    processes: Annotated[int, Meta(ge=1, le=1024)]
    address: Text
    round: Count = 0
    waits: bool = False
    failed: bool = False
    store: MemberStore | None = None
    following_store: MemberStore | None = None
    unreachable: Count = 0
    ready: Count = 0
    started: bool = False
    ended: bool = False
    known: MemberRound | None = None


class MemberHello(PrintableBody, frozen=True, kw_only=True):
    """Opens the stream of a member, and is its only message there."""

    PRINTABLE = ("member", "host")

    member: Text
    host: Text
    run: Count | None = None
    state: MemberStateBody


class MemberReport(MemberHello, frozen=True, kw_only=True):
    """Replaces the state of a member; `revision` grows with each of its reports."""

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
        principal = await require_principal(ProcessPrincipal, request, self.authenticate)
        hello = await body(request, MemberHello, _MAX_BYTES)
        sender = self._sender(principal, hello)
        if self.members.count(sender.job) >= _MAX_MEMBERS:
            raise TooManyError(f"{sender.job.name} has the maximum number of elastic agents")
        lines = LineResponse(request, self.refusals)
        await lines.prepare()
        self.members.attach(sender, self._member(sender, hello.state), lines)
        try:
            return await lines.serve()
        finally:
            self.members.detach(sender, lines)

    async def report(self, request: web.Request) -> web.Response:
        """Replaces the state of a member by the reported one."""
        principal = await require_principal(ProcessPrincipal, request, self.authenticate)
        sent = await body(request, MemberReport, _MAX_BYTES)
        sender = self._sender(principal, sent)
        if not self.members.report(sender, self._member(sender, sent.state), sent.revision):
            raise OlderRevisionError("the elastic agent has no stream, or has reported something newer")
        return web.json_response({})

    def _sender(self, principal: ProcessPrincipal, message: MemberHello) -> MemberId:
        """Returns the member that sent a message. Its token may name its host. Raises as `sender_run`."""
        job, run = sender_run(self.store, principal, message.run)
        return MemberId(job, run, principal.host or Host(message.host), message.member)

    def _member(self, sender: MemberId, state: MemberStateBody) -> Member:
        since, known = self.members.since(sender), state.known
        return Member(
            member=sender.member,
            since=self.clock.now() if since is None else since,
            processes=state.processes,
            address=state.address,
            round=state.round,
            waits=state.waits,
            failed=state.failed,
            store=_store(state.store),
            following_store=_store(state.following_store),
            unreachable=state.unreachable,
            ready=state.ready,
            started=state.started,
            ended=state.ended,
            known=None
            if known is None
            else KnownRound(
                number=known.number, hosts=tuple(Host(each) for each in known.hosts), in_process=known.in_process
            ),
        )


def _store(opened: MemberStore | None) -> RoundStore | None:
    return None if opened is None else RoundStore(opened.round, opened.address, opened.port)
