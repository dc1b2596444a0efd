"""What a service counts and measures, and the server that Prometheus reads it from."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import wraps
from typing import ParamSpec

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from servicekit.address import Address
from servicekit.clock import Clock
from servicekit.connections import Drop, GuardedSite, timed
from servicekit.faults import Fault

PATH = "/metrics"

_RETRY_SECONDS = 5.0
_PATIENCE_SECONDS = 10.0
"""As long as Prometheus waits for an answer; whoever takes longer to ask or to read is dropped."""

_MAX_EXEMPLAR = 128
"""Characters of all names and values together: OpenMetrics takes no more."""

_OTHER = "other"

P = ParamSpec("P")

_log = structlog.get_logger()


def registry() -> CollectorRegistry:
    """An empty one: what this process measures, and nothing that libraries add by themselves.

    Without the instants at which counters were made, which Prometheus would keep as a series beside each.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # It has no arguments.
    return CollectorRegistry()


def exemplar(labels: Mapping[str, str]) -> dict[str, str]:
    """As many of these labels as an exemplar may have, the first ones first."""
    kept: dict[str, str] = {}
    room = _MAX_EXEMPLAR
    for name, value in labels.items():
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


def log_errors_once(note: Callable[P, None]) -> Callable[P, None]:
    """The same, but what it raises is logged once and goes no further: who calls it has more important things to do."""
    failed = False

    @wraps(note)
    def noting(*arguments: P.args, **named: P.kwargs) -> None:
        nonlocal failed
        try:
            note(*arguments, **named)
        except Exception:  # noqa: BLE001 - whatever it is, it is its own
            if not failed:
                _log.exception("metrics.failed", metric=note.__name__)
            failed = True

    return noting


class LabelLimiter:
    """Keeps labels few whose values others choose: the first so many stay as they are, later ones are `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def of(self, *values: str) -> tuple[str, ...]:
        """The labels to use for these values, which count together."""
        if values not in self._known:
            if len(self._known) >= self._most:
                return (_OTHER,) * len(values)
            self._known.add(values)
        return values


class MetricsServer:
    """Plain HTTP with `GET /metrics`: OpenMetrics where that is asked for, else the older text.

    Nothing that happens to it concerns the rest of the service: an address that cannot be had is tried again, and what
    cannot be collected is answered with 500; each is logged once.

    Args:
        registry: What is served.
        address: Where; port 0 takes a free one.
        clock: For the log.
    """

    def __init__(self, registry: CollectorRegistry, address: Address, clock: Clock) -> None:
        self._registry = registry
        self._address = address
        self._address_fault = Fault(f"metrics address {address}", clock)
        self._collecting_fault = Fault("collecting metrics", clock)

    async def run(self) -> None:
        """Root task: serves until cancelled, as soon as the address can be had."""
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
        """Serves for as long as the context lasts, at that address.

        Raises:
            OSError: The address cannot be had.
        """
        app = web.Application(middlewares=[timed])
        app.router.add_get(PATH, self._metrics)
        runner = web.AppRunner(app, access_log=None, logger=_silent(), auto_decompress=False, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await GuardedSite(runner, self._address, None, patience=_PATIENCE_SECONDS, dropped=_dropped).start()
            yield Address(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        try:
            body = encode(self._registry)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever asks is told and the service goes on
            self._collecting_fault.failed(repr(error))
            return web.Response(status=500, text="the metrics cannot be collected\n")
        self._collecting_fault.recovered()
        return web.Response(body=body, headers={"Content-Type": content_type})


def _dropped(_why: Drop) -> None:
    """Nobody minds: it is asked for again in a moment."""


def _silent() -> logging.Logger:
    """For aiohttp, which would write lines of its own about bytes that are not HTTP."""
    logger = logging.Logger("metrics")  # noqa: LOG001 - nobody else is to find it, so that it ends with us
    logger.addHandler(logging.NullHandler())
    return logger
