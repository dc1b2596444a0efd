"""The ECS metadata service of every simulated node, on one loopback server.

A real node asks a link-local address; a simulated one asks `<url of the server>/nodes/<node>` and gets the same paths
below it. Plain mode answers everybody, hardened mode only requests with a token of that node.
"""

import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from aiohttp import web

from simulator.cloud.trace import Node

TTL_HEADER = "X-aliyun-ecs-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aliyun-ecs-metadata-token"  # noqa: S105  # The header's name, not a token.
MOST_TTL_SECONDS = 21600
REGION = "cn-simulated"
ZONE = "cn-simulated-a"
INSTANCE_TYPE = "ecs.simulated.large"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Mode(StrEnum):
    """Whether a node's metadata want a token."""

    PLAIN = "plain"
    HARDENED = "hardened"


class UnknownNode(LookupError):  # noqa: N818  # It names what is so.
    """No such node is there: add it first."""


@dataclass(slots=True)
class _Instance:
    """One life of a node. `tokens` maps each to the monotonic instant at which it expires."""

    instance_id: str
    gone_at: float | None = None
    tokens: dict[str, float] = field(default_factory=dict)
    polled: int = 0


class MetadataServer:
    """Serves the metadata of all nodes; start it, then add, notice, withdraw and remove nodes.

    A node that is added again under the same name is another instance, with another instance id. What is asked about a
    node that is not there is answered 404, like anything else that is not there: an agent that outlives its node is
    the business of whoever simulates the node.
    """

    def __init__(
        self,
        mode: Mode = Mode.PLAIN,
        host: str = "127.0.0.1",
        port: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mode = mode
        self._monotonic = monotonic
        self._site_at = (host, port)
        self._instances: dict[Node, _Instance] = {}
        self._runner: web.AppRunner | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """Where the server listens, once it has started."""
        return self._url

    def url_of(self, node: Node) -> str:
        """What stands in for the link-local address on this node."""
        return f"{self._url}/nodes/{node}"

    async def start(self) -> None:
        """Start to listen."""
        app = web.Application(middlewares=[_refuse_forwarded])
        app.router.add_put("/nodes/{node}/latest/api/token", self._token)
        app.router.add_get("/nodes/{node}/latest/meta-data/{item:.+}", self._item)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, *self._site_at)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def add(self, node: Node) -> None:
        """Let a new instance appear under this name, without a notice."""
        self._instances[node] = _Instance(f"i-{secrets.token_hex(8)}")

    def notice(self, node: Node, gone_at: float) -> None:
        """Announce that the node will be gone at `gone_at`, in Unix seconds.

        Raises:
            UnknownNode: No such node is there.
        """
        self._find(node).gone_at = gone_at

    def withdraw(self, node: Node) -> None:
        """Announce nothing any more.

        Raises:
            UnknownNode: No such node is there.
        """
        self._find(node).gone_at = None

    def remove(self, node: Node) -> None:
        """Forget the node; its metadata are asked in vain from now on."""
        self._instances.pop(node, None)

    def nodes(self) -> list[Node]:
        """The nodes that are there, oldest first."""
        return list(self._instances)

    def polled(self, node: Node) -> int:
        """How often this instance was asked for its termination time."""
        return self._find(node).polled

    def _find(self, node: Node) -> _Instance:
        try:
            return self._instances[node]
        except KeyError:
            raise UnknownNode(f"no node {node!r}") from None

    def _instance(self, request: web.Request) -> _Instance:
        try:
            return self._find(Node(request.match_info["node"]))
        except UnknownNode as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error

    async def _token(self, request: web.Request) -> web.Response:
        instance = self._instance(request)
        ttl = request.headers.get(TTL_HEADER, "")
        if not (ttl.isdecimal() and 1 <= int(ttl) <= MOST_TTL_SECONDS):
            raise web.HTTPBadRequest(text=f"{TTL_HEADER}: 1 to {MOST_TTL_SECONDS}\n")
        token = secrets.token_urlsafe(24)
        instance.tokens[token] = self._monotonic() + int(ttl)
        return web.Response(text=token)

    async def _item(self, request: web.Request) -> web.Response:
        instance = self._instance(request)
        self._authorize(instance, request.headers.get(TOKEN_HEADER))
        item = request.match_info["item"]
        text = _answer(instance, item)
        if text is None:
            raise web.HTTPNotFound(text=f"no {item}\n")
        return web.Response(text=text)

    def _authorize(self, instance: _Instance, token: str | None) -> None:
        if token is None:
            if self._mode is Mode.HARDENED:
                raise web.HTTPForbidden(text=f"{TOKEN_HEADER} is required\n")
            return
        if self._monotonic() >= instance.tokens.get(token, -math.inf):
            raise web.HTTPUnauthorized(text="unknown or expired token\n")


def _answer(instance: _Instance, item: str) -> str | None:
    match item:
        case "instance/spot/termination-time":
            instance.polled += 1
            return None if instance.gone_at is None else termination_time(instance.gone_at)
        case "instance-id":
            return instance.instance_id
        case "region-id":
            return REGION
        case "zone-id":
            return ZONE
        case "instance/instance-type":
            return INSTANCE_TYPE
        case _:
            return None


def termination_time(gone_at: float) -> str:
    """Write an instant as the cloud does: UTC, whole seconds, rounded down so that nobody is promised more."""
    return datetime.fromtimestamp(math.floor(gone_at), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@web.middleware
async def _refuse_forwarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if "X-Forwarded-For" in request.headers:
        raise web.HTTPForbidden(text="not for forwarded requests\n")
    return await handler(request)
