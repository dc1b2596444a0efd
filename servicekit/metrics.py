"""Records Prometheus metrics, and serves them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.http_server import GuardedSite, ignore_drop, timed

PATH = "/metrics"

_RETRY_SECONDS = 5.0
_TIMEOUT_SECONDS = 10.0
"""As long as Prometheus waits for an answer; a client that takes longer to ask or to read is dropped."""

_MAX_EXEMPLAR = 128
"""Characters of all names and values together: the limit of OpenMetrics."""

_OTHER = "other"

P = ParamSpec("P")

_log = structlog.get_logger()


def registry() -> CollectorRegistry:
    """Makes an empty registry, without the metrics that the library adds by itself.

    Counters have no `_created` samples either: Prometheus would keep each as another series.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # It has no arguments.
    return CollectorRegistry()


def exemplar(labels: Mapping[str, str]) -> dict[str, str]:
    """Returns as many of these labels as fit into an exemplar, in their order."""
    kept: dict[str, str] = {}
    room = _MAX_EXEMPLAR
    for name, value in labels.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


class HasBulkhead(Protocol):
    """Has hooks that record metrics."""

    bulkhead: Bulkhead


G = TypeVar("G", bound=HasBulkhead)


def guarded(hook: Callable[Concatenate[G, P], None]) -> Callable[Concatenate[G, P], None]:
    """Catches exceptions of a hook, because its callers have more important work."""

    @wraps(hook)
    def wrapped(self: G, /, *arguments: P.args, **named: P.kwargs) -> None:
        with self.bulkhead.guard("metrics", hook.__name__, retried=False):
            hook(self, *arguments, **named)

    return wrapped


@dataclass(slots=True)
class LabelLimiter:
    """Limits the values of labels that others choose. It keeps the first values, and all later ones become `other`."""

    max_values: int
    _known: set[tuple[str, ...]] = field(init=False, default_factory=set)

    def of(self, *values: str) -> tuple[str, ...]:
        """Returns the labels to use for these values, which count as one."""
        if values not in self._known:
            if len(self._known) >= self.max_values:
                return (_OTHER,) * len(values)
            self._known.add(values)
        return values


class MetricsServer:
    """Serves `GET /metrics` over plain HTTP: OpenMetrics if the client asks for it, else the older text format.

    Its failures do not affect the rest of the service: an address that is not available is tried again, and metrics
    that cannot be collected are answered with 500. Each is logged once.

    Args:
        registry: The metrics.
        address: Port 0 picks a free port.
        clock: For the log.
        bulkhead: Keeps metrics that cannot be collected.
    """

    def __init__(self, registry: CollectorRegistry, address: Address, clock: Clock, bulkhead: Bulkhead) -> None:
        self._registry = registry
        self._address = address
        self._address_fault = Fault(f"metrics address {address}", clock)
        self._bulkhead = bulkhead

    async def run(self) -> None:
        """Root task: waits until the address is available, and serves until cancelled."""
        while True:
            try:
                async with self.serving() as address:
                    self._address_fault.recovered()
                    _log.info("metrics.listening", address=str(address))
                    await asyncio.Event().wait()
            except OSError as error:
                self._address_fault.failed(str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Serves while the context lasts; yields the address.

        Raises:
            OSError: The address is not available.
        """
        # aiohttp would log every request that is not HTTP.
        silent = logging.Logger("metrics")  # noqa: LOG001 - not registered, so that it ends with the server
        silent.addHandler(logging.NullHandler())
        app = web.Application(middlewares=[timed])
        app.router.add_get(PATH, self._metrics)
        runner = web.AppRunner(app, access_log=None, logger=silent, auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = GuardedSite(runner, self._address, None, timeout_seconds=_TIMEOUT_SECONDS, on_drop=ignore_drop)
            await site.start()
            yield Address(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        with self._bulkhead.guard("metrics", "collecting") as attempt:
            body = encode(self._registry)
        if attempt.failed:
            return web.Response(status=500, text="the metrics cannot be collected\n")
        return web.Response(body=body, headers={"Content-Type": content_type})
