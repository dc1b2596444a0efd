"""The server of the mutating webhook: HTTPS on its own port, on every replica, leading or not."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from aiohttp import web

from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.http_server import Drop, GuardedSite, timed
from servicekit.tls import ServerCertificate
from supervisor.ingest.http import body, protocol_log, refusing
from supervisor.refusals import Code, Refusals, Wire, readable
from supervisor.webhook.checks import UncheckedError, warnings_for
from supervisor.webhook.mutation import Mutation, PodInjection
from supervisor.webhook.review import NotUnderstoodError, Review, answer, answer_with_warnings, review_mutation

PATH = "/mutate-pods"
CHECK_PATH = "/check-jobs"

_PATIENCE_SECONDS = 2.0
"""The time that an API server waits; after it, the pod is created unchanged."""

_MAX_BYTES = 4 * 1024 * 1024
"""etcd accepts objects of 1.5 MiB, and an API server requests of 3 MiB."""

_STOP_SECONDS = 0.5

Reviewed = Callable[[str, float], None]
"""Called for each answer and the seconds that it took: for a pod with `shaped`, `unchanged` or `not_understood`, for a
job with `checked` or `unchecked`."""

_log = structlog.get_logger()


def ignore_review(_outcome: str, _seconds: float) -> None:
    """The `Reviewed` that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The server; `injection` is called for each pod."""

    address: Address
    certificate: ServerCertificate | None
    refusals: Refusals
    injection: Callable[[], PodInjection]
    bulkhead: Bulkhead
    on_review: Reviewed = ignore_review

    async def run(self) -> None:
        """Root task: serves until cancelled.

        Raises:
            OSError: The address cannot be used.
        """
        async with self.serving() as address:
            _log.info("webhook.listening", address=str(address), tls=self.certificate is not None)
            await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Serves while the context lasts; yields the address.

        Raises:
            OSError: The address cannot be used.
        """
        app = web.Application(middlewares=[timed, refusing(self.refusals, Wire.WEBHOOK)])
        app.router.add_post(PATH, self._mutate)
        app.router.add_post(CHECK_PATH, self._check)
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
        mutated, outcome = self._mutation(review)
        self.on_review(outcome, time.monotonic() - began)
        return _response(answer(review.request.uid, mutated))

    async def _check(self, request: web.Request) -> web.Response:
        """Answers with warnings about a job. In a thread: pods do not wait for a long script that is read."""
        review = await body(request, Review, _MAX_BYTES)
        began = time.monotonic()
        warnings, outcome = await asyncio.to_thread(self._warnings, review)
        self.on_review(outcome, time.monotonic() - began)
        return _response(answer_with_warnings(review.request.uid, warnings))

    def _warnings(self, review: Review) -> tuple[Sequence[str], str]:
        with self.bulkhead.guard("webhook", review.request.kind.kind, retried=False):
            try:
                return warnings_for(review.request), "checked"
            except UncheckedError as error:
                _log.info("webhook.job_unchecked", reason=readable(str(error)))
        return (), "unchecked"

    def _mutation(self, review: Review) -> tuple[Mutation, str]:
        try:
            mutated = review_mutation(review.request, self.injection())
        except NotUnderstoodError as error:
            self.refusals.add(Wire.WEBHOOK, Code.MALFORMED, f"a pod that cannot be decoded: {error}")
            return Mutation(warnings=[f"the pod is not changed: {readable(str(error))}"]), "not_understood"
        return mutated, "shaped" if mutated.patch else "unchanged"

    def _dropped(self, why: Drop) -> None:
        if why is not Drop.IDLE:
            code = Code.BAD_REQUEST if why is Drop.TOO_MANY else Code.TOO_SLOW
            self.refusals.add(Wire.WEBHOOK, code, why)


def _response(answered: bytes) -> web.Response:
    response = web.Response(body=answered, content_type="application/json")
    # A kept connection may lead to a replica that is gone when the next pod is created, which would then wait two
    # seconds and stay unchanged; a new connection takes a millisecond.
    response.force_close()
    return response
