"""The base of sources whose metadata service has one item: the instant at which the instance is released.

The item answers with 404, or with an empty body, while no release is planned. Everything but that and the instant,
including refusals and time-outs, is unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import ClassVar

from node_agent.notices import SourceName
from node_agent.sources import Answer, Clear, MetadataMode, NodeIdentity, Noticed, SourceUnavailable, machine
from node_agent.sources.http import MetadataHttp
from node_agent.sources.lead import seconds_left
from node_agent.sources.session_token import OptionalTokenClient, TokenHeaders
from servicekit.clock import Clock


@dataclass(frozen=True, slots=True)
class Service:
    """The metadata service of one cloud.

    Attributes:
        item: The path of the instant.
        parse: Reads the instant from an answer; None where nothing is announced. It raises `SourceUnavailable` for
            anything else.
        is_own: Whether an instance id is one of this cloud's.
    """

    name: SourceName
    item: str
    identity: machine.Paths
    parse: Callable[[bytes], datetime | None]
    is_own: Callable[[str], bool]


class TerminationTimeSource:
    """Asks the service. Needs a running loop.

    Args:
        service: The cloud.
        http: Closed with the source.
        get: Sends a request below the root of `http`, with a token where the cloud has tokens.
        clock: For the lead time where the service's own clock is not known.
    """

    def __init__(self, service: Service, http: MetadataHttp, get: machine.Get, clock: Clock) -> None:
        self._service = service
        self._http = http
        self._get = get
        self._clock = clock
        self._identity: NodeIdentity | None = None

    @property
    def name(self) -> SourceName:
        return self._service.name

    async def close(self) -> None:
        await self._http.close()

    async def identify(self) -> NodeIdentity:
        """Asks for the instance once: the services limit the rate of requests."""
        if self._identity is None:
            self._identity = await machine.identify(self._get, self._service.identity)
        return self._identity

    async def recognize(self) -> bool:
        return self._service.is_own(await machine.item(self._get, self._service.identity.uid))

    async def poll(self) -> Answer:
        reply = await self._get(self._service.item)
        if reply.status == HTTPStatus.NOT_FOUND:
            return Clear()
        if reply.status != HTTPStatus.OK:
            raise SourceUnavailable(f"HTTP {reply.status}")
        announced = self._service.parse(reply.body)
        if announced is None:
            return Clear()
        left = seconds_left(announced, reply.date, self._clock.wall())
        return Noticed(announced, left, "the spot instance will be released")


class OptionalTokenSource(TerminationTimeSource):
    """Asks a service whose requests may carry a session token. Needs a running loop.

    Args:
        base_url: Scheme and host of the service, with a path before `/latest` where a proxy or simulator has one.
        mode: Whether requests carry a session token.
        clock: For the age of the token, and for the lead time where the service's own clock is not known.
    """

    SERVICE: ClassVar[Service]
    HEADERS: ClassVar[TokenHeaders]

    def __init__(self, base_url: str, mode: MetadataMode, clock: Clock) -> None:
        http = MetadataHttp(base_url, clock)
        super().__init__(self.SERVICE, http, OptionalTokenClient(http, self.HEADERS, mode, clock).get, clock)
