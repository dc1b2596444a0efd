"""Serves the webhook: HTTPS on its own port, on every replica, leading or not.

It changes new pods, and warns whoever creates a job of what would go wrong at a reclaim. It never refuses an object,
and never changes a job.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import structlog
from aiohttp import web

from servicekit.address import Address
from servicekit.bounds import one_line
from servicekit.bulkhead import Bulkhead
from servicekit.http_server import Drop, GuardedSite, timed
from servicekit.tls import ServerCertificate
from supervisor.check.checking import check
from supervisor.check.job import FindingSeverity
from supervisor.check.manifests import jobs_in
from supervisor.cluster.annotations import opts_out
from supervisor.cluster.podspec import Body
from supervisor.ingest.http import body, protocol_log, refusing
from supervisor.refusals import Code, Refusals, Wire, readable
from supervisor.webhook.mutation import PodInjection, PodMutation, mutation_for
from supervisor.webhook.pods import NewPod

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

_API_VERSION = "admission.k8s.io/v1"
_KIND = "AdmissionReview"
_NAME = "job-supervisor: "
_MAX_WARNING = 120
"""Characters of a warning: API servers truncate longer ones if there are many."""

_MAX_JOB_BYTES = 64 * 1024
"""A larger job is not checked: scripts are read letter by letter, 0.1 s for as many."""
_MAX_WARNINGS = 8
"""API servers drop what is longer than 4096 characters altogether."""
_LONGEST = 240

_log = structlog.get_logger()


class PodNotUnderstoodError(Exception):
    """This version cannot decode the pod, so the webhook does not change it."""


class _ObjectKind(Body, frozen=True):
    kind: str
    group: str = ""


class AdmissionRequest(Body, frozen=True):
    """The request of a review; `object` is the new object."""

    uid: str
    kind: _ObjectKind
    operation: str
    object: msgspec.Raw = msgspec.Raw(b"null")
    sub_resource: str = ""

    @property
    def creates(self) -> bool:
        return self.operation == "CREATE" and not self.sub_resource


class AdmissionReview(Body, frozen=True):
    """An admission review."""

    api_version: str
    kind: str
    request: AdmissionRequest

    def __post_init__(self) -> None:
        if (self.api_version, self.kind) != (_API_VERSION, _KIND):
            raise ValueError(f"{self.kind} {self.api_version} is not an {_KIND} of {_API_VERSION}")


class _ReviewResponse(Body, frozen=True, omit_defaults=True):
    uid: str
    allowed: bool
    patch_type: str = ""
    patch: str = ""
    warnings: Sequence[str] = ()


class _ReviewAnswer(Body, frozen=True):
    api_version: str
    kind: str
    response: _ReviewResponse


class UncheckedError(Exception):
    """The webhook does not check the job. The API server creates it all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The server; `injection` is called for each pod, `on_review` for each answer."""

    address: Address
    certificate: ServerCertificate | None
    refusals: Refusals
    injection: Callable[[], PodInjection]
    bulkhead: Bulkhead
    on_review: Reviewed | None = None

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
        review = await body(request, AdmissionReview, _MAX_BYTES)
        began = time.monotonic()
        try:
            mutated = review_mutation(review.request, self.injection())
            outcome = "shaped" if mutated.patch else "unchanged"
        except PodNotUnderstoodError as error:
            self.refusals.add(Wire.WEBHOOK, Code.MALFORMED, f"a pod that cannot be decoded: {error}")
            mutated = PodMutation(warnings=[f"the pod is not changed: {readable(str(error))}"])
            outcome = "not_understood"
        return self._response(answer(review.request.uid, mutated), outcome, began)

    async def _check(self, request: web.Request) -> web.Response:
        """Answers with warnings about a job."""
        review = await body(request, AdmissionReview, _MAX_BYTES)
        began = time.monotonic()
        warnings, outcome = list[str](), "unchecked"
        with self.bulkhead.guard("webhook", review.request.kind.kind, retried=False):
            try:
                # In a thread: pods do not wait for a long script that is read.
                warnings, outcome = await asyncio.to_thread(warnings_for, review.request), "checked"
            except UncheckedError as error:
                _log.info("webhook.job_unchecked", reason=readable(str(error)))
        # These are whole sentences, so they are not cut.
        response = _ReviewResponse(
            review.request.uid, allowed=True, warnings=tuple(f"{_NAME}{warning}" for warning in warnings)
        )
        answered = msgspec.json.encode(_ReviewAnswer(_API_VERSION, _KIND, response))
        return self._response(answered, outcome, began)

    def _response(self, answered: bytes, outcome: str, began: float) -> web.Response:
        """Reports an answer to the metrics, and makes the response from it."""
        if self.on_review is not None:
            self.on_review(outcome, time.monotonic() - began)
        response = web.Response(body=answered, content_type="application/json")
        # A kept connection may lead to a replica that is gone when the next pod is created, which would then wait two
        # seconds and stay unchanged; a new connection takes a millisecond.
        response.force_close()
        return response

    def _dropped(self, why: Drop) -> None:
        if why is not Drop.IDLE:
            code = Code.BAD_REQUEST if why is Drop.TOO_MANY else Code.TOO_SLOW
            self.refusals.add(Wire.WEBHOOK, code, why)


def review_mutation(request: AdmissionRequest, injection: PodInjection) -> PodMutation:
    """Returns the mutation of the request's object, if it is a new pod.

    Raises:
        PodNotUnderstoodError: The pod cannot be decoded.
    """
    if not request.creates or (request.kind.group, request.kind.kind) != ("", "Pod"):
        return PodMutation()
    try:
        pod = msgspec.json.decode(request.object, type=NewPod)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodNotUnderstoodError(str(error)) from error
    return mutation_for(pod, injection)


def answer(uid: str, what: PodMutation) -> bytes:
    """Encodes the response that allows the object with a mutation."""
    warnings = tuple(f"{_NAME}{warning}"[:_MAX_WARNING] for warning in what.warnings)
    response = _ReviewResponse(uid, allowed=True, warnings=warnings)
    if what.patch:
        patch = base64.b64encode(msgspec.json.encode(what.patch)).decode()
        response = msgspec.structs.replace(response, patch_type="JSONPatch", patch=patch)
    return msgspec.json.encode(_ReviewAnswer(_API_VERSION, _KIND, response))


def warnings_for(request: AdmissionRequest) -> list[str]:
    """Returns the warnings for the creator of the request's job: errors before warnings, and no hints.

    Raises:
        UncheckedError: The job is too large, or no JSON.
    """
    if not request.creates:
        return []
    if len(request.object) > _MAX_JOB_BYTES:
        raise UncheckedError(f"it is larger than {_MAX_JOB_BYTES // 1024} KiB")
    try:
        document = msgspec.json.decode(request.object)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UncheckedError(str(error)) from error
    jobs = [job for job in jobs_in(document) if not opts_out(job.annotations)]
    found = [each for job in jobs for each in check(job) if each.severity is not FindingSeverity.HINT]
    shown = []
    for finding in found[:_MAX_WARNINGS]:
        problem = f"{finding.problem} ({finding.rule})"
        whole = f"{problem} {finding.fix}"
        # It quotes names of the manifest, and a warning is the header of an answer.
        shown.append(one_line(whole if len(whole) <= _LONGEST else problem)[:_LONGEST])
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more; `job-supervisor check` shows all")
    return shown
