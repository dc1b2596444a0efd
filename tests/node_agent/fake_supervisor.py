"""A supervisor on loopback that records what agents say and does what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from reclaim.v1 import reclaim_pb2 as pb
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceServicer, add_ReclaimServiceServicer_to_server


class HeardStream:
    def __init__(self, authorization: str) -> None:
        self.authorization = authorization
        self.messages: list[pb.AgentMessage] = []
        self.over = False
        self.outgoing: asyncio.Queue[pb.SupervisorMessage | grpc.StatusCode | None] = asyncio.Queue()

    @property
    def hello(self) -> pb.Hello:
        assert self.messages[0].WhichOneof("message") == "hello"
        return self.messages[0].hello

    @property
    def notices(self) -> list[pb.NoticeReport]:
        return [message.notice for message in self.messages if message.WhichOneof("message") == "notice"]

    @property
    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("message") for message in self.messages]

    def say(self, message: pb.SupervisorMessage | grpc.StatusCode | None) -> None:
        self.outgoing.put_nowait(message)


class FakeAgentService(ReclaimServiceServicer):
    """Welcomes, acknowledges and answers heartbeats unless told otherwise."""

    def __init__(self) -> None:
        self.streams: list[HeardStream] = []
        # Three of them are silence, which no test that does not mean it may make by being late.
        self.heartbeat = 2.0
        # 0: as an older supervisor, which does not say it.
        self.report_heartbeat = 0.0
        # False: as an older supervisor.
        self.machine_updates = False
        self.welcomes = True
        self.acknowledges = True
        self.answers_heartbeats = True
        self.least_session = 0
        self.refusal: grpc.StatusCode | None = None
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen, on the same port as before if there was one."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_ReclaimServiceServicer_to_server(self, server)
        address = f"127.0.0.1:{self.port}"
        self.port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def Connect(  # noqa: N802 - the contract's name and text
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[pb.SupervisorMessage]:
        authorization = dict(context.invocation_metadata()).get("authorization", "")
        stream = HeardStream(authorization)
        self.streams.append(stream)
        if self.refusal is not None:
            await context.abort(self.refusal, "refused by the test")
        reader = asyncio.create_task(self._read(stream, request_iterator))
        try:
            while (outgoing := await stream.outgoing.get()) is not None:
                if isinstance(outgoing, grpc.StatusCode):
                    await context.abort(outgoing, "ended by the test")
                else:
                    yield outgoing
        finally:
            stream.over = True
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, stream: HeardStream, requests: AsyncIterator[pb.AgentMessage]) -> None:
        async for message in requests:
            stream.messages.append(message)
            self._react(stream, message)
        stream.say(None)

    def _react(self, stream: HeardStream, message: pb.AgentMessage) -> None:
        match message.WhichOneof("message"):
            case "hello" if message.hello.session < self.least_session:
                stream.say(pb.SupervisorMessage(superseded=pb.Superseded(session=self.least_session)))
                stream.say(None)
            case "hello":
                if self.welcomes:
                    stream.say(pb.SupervisorMessage(welcome=self._welcome()))
                self._acknowledge(stream, *message.hello.notices)
            case "notice":
                self._acknowledge(stream, message.notice)
            # The real one beats by its own clock: an agent that has news all the time must hear from this one too.
            case "heartbeat" | "source" if self.answers_heartbeats:
                stream.say(pb.SupervisorMessage(heartbeat=pb.Heartbeat()))

    def _welcome(self) -> pb.Welcome:
        return pb.Welcome(
            heartbeat_seconds=self.heartbeat,
            report_heartbeat_seconds=self.report_heartbeat,
            machine_updates=self.machine_updates,
        )

    def _acknowledge(self, stream: HeardStream, *reports: pb.NoticeReport) -> None:
        if self.acknowledges and reports:
            stream.say(acknowledgement(*reports))


def acknowledgement(*reports: pb.NoticeReport) -> pb.SupervisorMessage:
    entries = [
        pb.Acknowledgement.Entry(notice_id=f"{report.source}/{report.subject.uid}", revision=report.revision)
        for report in reports
    ]
    return pb.SupervisorMessage(acknowledgement=pb.Acknowledgement(entries=entries))


@asynccontextmanager
async def fake_supervisor() -> AsyncIterator[FakeAgentService]:
    fake = FakeAgentService()
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
