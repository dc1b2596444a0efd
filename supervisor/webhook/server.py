"""Where an API server asks about new pods: HTTPS on a port of its own, by every replica, whoever leads."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from aiohttp import web

from servicekit.address import Address
from servicekit.connections import Drop, GuardedSite, timed
from servicekit.tls import ServerCertificate
from supervisor.ingest.http import body, protocol_log, refusing
from supervisor.refusals import Code, Refusals, Wire, readable
from supervisor.webhook.mutation import Mutation, PodInjection
from supervisor.webhook.review import NotUnderstoodError, Review, answer, considered

PATH = "/mutate-pods"

_PATIENCE_SECONDS = 2.0
"""As long as an API server waits; it makes the pod as it is then."""

_MAX_BYTES = 4 * 1024 * 1024
"""etcd takes 1.5 MiB of an object, and an API server 3 MiB of a request."""

_STOP_SECONDS = 0.5

Reviewed = Callable[[str, float], None]
"""Told of each answer: `mutated`, `unchanged` or `not_understood`, and the seconds that it took."""

_log = structlog.get_logger()


def ignore_review(_outcome: str, _seconds: float) -> None:
    """Where nothing is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The server; `gifts` is asked for with each pod."""

    address: Address
    certificate: ServerCertificate | None
    refusals: Refusals
    gifts: Callable[[], PodInjection]
    on_review: Reviewed = ignore_review

    async def run(self) -> None:
        """Root task: serves until cancelled.

        Raises:
            OSError: The address cannot be had.
        """
        async with self.serving() as address:
            _log.info("webhook.listening", address=str(address), tls=self.certificate is not None)
            await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Serves for as long as the context lasts, at that address.

        Raises:
            OSError: The address cannot be had.
        """
        app = web.Application(middlewares=[timed, refusing(self.refusals, Wire.WEBHOOK)])
        app.router.add_post(PATH, self._mutate)
        log = protocol_log(self.refusals, Wire.WEBHOOK)
        runner = web.AppRunner(app, access_log=None, logger=log, auto_decompress=False, shutdown_timeout=_STOP_SECONDS)
        await runner.setup()
        try:
            context = None if self.certificate is None else self.certificate.context
            await GuardedSite(
                runner, self.address, context, timeout_seconds=_PATIENCE_SECONDS, on_drop=self._dropped
            ).start()
            yield Address(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()

    async def _mutate(self, request: web.Request) -> web.Response:
        review = await body(request, Review, _MAX_BYTES)
        began = time.monotonic()
        mutated, outcome = self._considered(review)
        response = web.Response(body=answer(review.request.uid, mutated), content_type="application/json")
        self.on_review(outcome, time.monotonic() - began)
        # A connection that is kept leads to a replica that may be gone when the next pod is made, which then is
        # made as it is after two seconds; a new one is a millisecond.
        response.force_close()
        return response

    def _considered(self, review: Review) -> tuple[Mutation, str]:
        try:
            mutated = considered(review.request, self.gifts())
        except NotUnderstoodError as error:
            self.refusals.add(Wire.WEBHOOK, Code.MALFORMED, f"a pod that is not understood: {error}")
            return Mutation(warnings=[f"the pod is left as it is: {readable(str(error))}"]), "not_understood"
        return mutated, "shaped" if mutated.patch else "unchanged"

    def _dropped(self, why: Drop) -> None:
        if why is not Drop.IDLE:
            code = Code.BAD_REQUEST if why is Drop.TOO_MANY else Code.TOO_SLOW
            self.refusals.add(Wire.WEBHOOK, code, why)
