"""The metadata service of all simulated nodes, on one loopback server.

A real node asks a link-local address. A simulated one asks `<url of the server>/nodes/<node>` and gets the same paths
below it; with a single node also without that prefix. Plain mode needs no token. Hardened mode needs a token of that
node, where the cloud has tokens. aws always needs one.
"""

import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from aiohttp import web

from simulator.cloud import faults
from simulator.cloud.dialects import DIALECTS, InstanceFacts, MetadataDialect, SimulatedCloud
from simulator.cloud.faults import Handler, MetadataFault
from simulator.cloud.trace import Node

MAX_TTL_SECONDS = 21600


class AnswerMode(StrEnum):
    """Whether the metadata service requires a token."""

    PLAIN = "plain"
    HARDENED = "hardened"


class UnknownNode(LookupError):  # noqa: N818 - the name describes the state
    """There is no such node. Add it first."""


@dataclass(slots=True)
class _Instance:
    """One life of a node. `tokens` maps each token to its monotonic expiry."""

    facts: InstanceFacts
    dialect: MetadataDialect
    tokens: dict[str, float] = field(default_factory=dict)
    poll_count: int = 0


class MetadataServer:
    """Serves the metadata of all nodes. Start it, then add, notice, withdraw and remove nodes.

    A node that is added again under the same name is a new instance with a new id. Requests about a missing node get
    404,
    like any other missing item.
    """

    def __init__(
        self,
        mode: AnswerMode = AnswerMode.PLAIN,
        host: str = "127.0.0.1",
        port: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
        cloud: SimulatedCloud = SimulatedCloud.ALIYUN,
    ) -> None:
        self._mode = mode
        self._cloud = cloud
        self._fault: MetadataFault | None = None
        self._site: web.TCPSite | None = None
        self._asked_at = -math.inf
        self._monotonic = monotonic
        self._site_at = (host, port)
        self._instances: dict[Node, _Instance] = {}
        self._runner: web.AppRunner | None = None
        self._url = ""

    @property
    def url(self) -> str:
        return self._url

    def url_of(self, node: Node) -> str:
        """Return the address that replaces the link-local address on this node."""
        return f"{self._url}/nodes/{node}"

    async def start(self) -> None:
        app = web.Application(middlewares=[self._record_request, self._inject_fault, _refuse_forwarded])
        for prefix in ("/nodes/{node}", ""):
            app.router.add_put(f"{prefix}/latest/api/token", self._token)
            app.router.add_post(f"{prefix}/metadata/scheduledevents", self._acknowledge)
            app.router.add_get(f"{prefix}/{{path:.+}}", self._item)
        # The handler of an endless fault must end when its client disconnects.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        await self._listen()
        host, port = self._site_at
        self._url = f"http://{host}:{port}"

    async def _listen(self) -> None:
        if self._runner is not None and self._site is None:
            self._site = web.TCPSite(self._runner, *self._site_at)
            await self._site.start()
            self._site_at = self._runner.addresses[0][:2]

    async def set_fault(self, fault: MetadataFault | None) -> None:
        """Start a fault, or end it (None)."""
        self._fault = fault
        if fault is MetadataFault.REFUSED and self._site is not None:
            await self._site.stop()
            self._site = None
        elif fault is not MetadataFault.REFUSED:
            await self._listen()
        if fault is MetadataFault.NO_TOKENS:
            self._expire_tokens()

    def _expire_tokens(self) -> None:
        for instance in self._instances.values():
            instance.tokens.clear()

    async def stop(self) -> None:
        """Stop listening and drop all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = self._site = None

    def add(self, node: Node, cloud: SimulatedCloud | None = None) -> None:
        """Create an instance under this name, without a notice, by default in the server's cloud."""
        self._instances[node] = _Instance(InstanceFacts(node, secrets.token_hex(8)), DIALECTS[cloud or self._cloud])

    def notice(self, node: Node, deadline: float) -> None:
        """Announce that the node will be gone at `deadline`, in Unix seconds.

        Raises:
            UnknownNode: There is no such node.
        """
        self._change(node, deadline=deadline)

    def withdraw(self, node: Node) -> None:
        """Withdraw the announcement.

        Raises:
            UnknownNode: There is no such node.
        """
        self._change(node, deadline=None, acknowledged=False)

    def warn(self, node: Node, since: float | None) -> None:
        """Warn since that instant (Unix seconds) of a reclaim that is not announced, or end the warning (None).

        Raises:
            UnknownNode: There is no such node.
        """
        self._change(node, warned_at=since)

    def acknowledged(self, node: Node) -> bool:
        """Return whether the node's agent has allowed its event to start; only Azure waits for that."""
        return self._find(node).facts.acknowledged

    def _change(self, node: Node, **facts: Any) -> None:
        instance = self._find(node)
        instance.facts = replace(instance.facts, **facts)

    def remove(self, node: Node) -> None:
        self._instances.pop(node, None)

    def nodes(self) -> list[Node]:
        """Return the nodes, oldest first."""
        return list(self._instances)

    def poll_count(self, node: Node) -> int:
        """Return how often this instance was asked for its termination time."""
        return self._find(node).poll_count

    @property
    def asked_at(self) -> float:
        """The monotonic time of the last request."""
        return self._asked_at

    def _find(self, node: Node) -> _Instance:
        try:
            return self._instances[node]
        except KeyError:
            raise UnknownNode(f"no node {node!r}") from None

    def _instance(self, request: web.Request) -> _Instance:
        named = request.match_info.get("node")
        if named is None and len(self._instances) != 1:
            raise web.HTTPNotFound(text=f"the path must name one of the {len(self._instances)} nodes\n")
        try:
            return self._find(next(iter(self._instances)) if named is None else Node(named))
        except UnknownNode as error:
            raise web.HTTPNotFound(text=f"{error}\n") from error

    @web.middleware
    async def _record_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._asked_at = self._monotonic()
        return await handler(request)

    @web.middleware
    async def _inject_fault(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._fault is None:
            return await handler(request)
        if self._fault is MetadataFault.TOKENS_EXPIRE and request.method == "GET":
            # The token is good for this request only.
            try:
                return await handler(request)
            finally:
                self._expire_tokens()
        return await faults.answer(self._fault, request, handler)

    async def _token(self, request: web.Request) -> web.Response:
        instance = self._instance(request)
        header = instance.dialect.ttl_header
        if not header:
            raise web.HTTPNotFound(text="this cloud has no tokens\n")
        ttl = request.headers.get(header, "")
        if not (ttl.isdecimal() and 1 <= int(ttl) <= MAX_TTL_SECONDS):
            raise web.HTTPBadRequest(text=f"{header}: 1 to {MAX_TTL_SECONDS}\n")
        token = secrets.token_urlsafe(24)
        instance.tokens[token] = self._monotonic() + int(ttl)
        # As of EC2: clients that refresh their token in time learn from it how long this one lasts.
        return web.Response(text=token, headers={header: ttl})

    async def _item(self, request: web.Request) -> web.Response:
        instance = self._instance(request)
        dialect = instance.dialect
        if dialect.token_header:
            self._authorize(instance, request.headers.get(dialect.token_header))
        _check(dialect, request)
        path = f"/{request.match_info['path']}"
        item = path.removeprefix(f"{dialect.root}/")
        instance.poll_count += item == dialect.announcement
        text = dialect.items(instance.facts).get(item)
        if text is None or item == path:
            raise web.HTTPNotFound(text=f"no {item}\n", headers=dialect.answered)
        return web.Response(text=text, headers=dialect.answered)

    async def _acknowledge(self, request: web.Request) -> web.Response:
        """Let the named event start, like Azure, if the node has it."""
        instance = self._instance(request)
        _check(instance.dialect, request)
        asked = {each["EventId"] for each in (await request.json())["StartRequests"]}
        if instance.dialect is not DIALECTS[SimulatedCloud.AZURE] or asked != {f"Preempt-{instance.facts.node}"}:
            raise web.HTTPBadRequest(text="no such event\n")
        instance.facts = replace(instance.facts, acknowledged=True)
        return web.Response()

    def _authorize(self, instance: _Instance, token: str | None) -> None:
        dialect = instance.dialect
        if token is None:
            if self._mode is AnswerMode.HARDENED or dialect.always_token:
                raise _refusal(dialect)
            return
        if self._monotonic() >= instance.tokens.get(token, -math.inf):
            raise web.HTTPUnauthorized(text="unknown or expired token\n")


def _refusal(dialect: MetadataDialect) -> web.HTTPException:
    refusal = web.HTTPForbidden if dialect.tokenless == web.HTTPForbidden.status_code else web.HTTPUnauthorized
    return refusal(text=f"{dialect.token_header} is required\n")


def _check(dialect: MetadataDialect, request: web.Request) -> None:
    """Refuse a request that a browser or a careless program could have been made to send."""
    missing = [name for name, value in dialect.required.items() if request.headers.get(name) != value]
    if missing:
        raise web.HTTPForbidden(text=f"{missing[0]} is required\n")
    if dialect.version and "api-version" not in request.query:
        raise web.HTTPBadRequest(text="api-version is required\n")


@web.middleware
async def _refuse_forwarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if "X-Forwarded-For" in request.headers:
        raise web.HTTPForbidden(text="forwarded requests are refused\n")
    return await handler(request)
