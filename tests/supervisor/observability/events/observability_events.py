"""An API server that accepts Events and can fail as real ones do, and the objects that Events are about."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.server import ApiServer, always
from supervisor.domain.ids import Host
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.observability.events.recorder import EventLimits, EventRecorder
from supervisor.observability.events.rules import ObjectReference
from supervisor.observability.journal import JobChanged, NoticeChanged
from tests.supervisor.decide.decide_builders import notice, running_job

JOB = ObjectReference("job-supervisor.kube-ai.io/v1alpha1", "SupervisedJob", "team", "trainingjob.bert", "1")
TRAINING_JOB = ObjectReference("kai.alibabacloud.com/v1alpha1", "TrainingJob", "team", "bert", "2")
NOTICE = ObjectReference("job-supervisor.kube-ai.io/v1alpha1", "ReclaimNotice", "", "n-1", "3")


def pod(number: int) -> ObjectReference:
    return ObjectReference("v1", "Pod", "team", f"bert-worker-{number}", f"pod-{number}")


@dataclass
class Known:
    noticed_pods: Sequence[ObjectReference] = ()
    resource: ObjectReference | None = NOTICE
    every_notice_has_its_own: bool = True
    jobs: Sequence[ObjectReference] = (JOB, TRAINING_JOB)
    lets_go: bool = False

    def notice(self, notice: ReclaimNotice) -> tuple[ObjectReference | None, Sequence[ObjectReference]]:
        if self.resource is None or not self.every_notice_has_its_own:
            return self.resource, self.noticed_pods
        return replace(self.resource, uid=f"resource of {notice.id}"), self.noticed_pods

    def job(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        assert job
        return self.jobs

    def released(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        assert job
        return [TRAINING_JOB] if self.lets_go else []

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterable[ObjectReference]:
        assert job
        return [pod(int(host[1:])) for host in hosts]


@dataclass
class EventServer:
    """Keeps Events by namespace and name.

    `refuse` may answer in its place; it answers while it is `open`; so many answers get `lost` when all is done.
    """

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    refuse: Callable[[web.Request], web.Response | None] = lambda _request: None
    open: asyncio.Event = field(default_factory=asyncio.Event)
    lost: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        await self.open.wait()
        if (refused := self.refuse(request)) is not None:
            return refused
        body, path = await request.json(), request.path
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.events:
                return web.json_response({"message": "there already"}, status=409)
            self.events[path] = body
        elif path not in self.events:
            return web.json_response({"message": "not found"}, status=404)
        else:
            self.events[path]["series"] = body["series"]
        if self.lost:
            self.lost -= 1
            return web.json_response({"message": "timed out"}, status=504)
        version = {"uid": path, "resourceVersion": str(len(self.requests))}
        return web.json_response({"metadata": {**self.events[path]["metadata"], **version}})

    def notes(self) -> list[str]:
        """The notes of all Events, in the order of their arrival."""
        return [event["note"] for event in self.events.values()]


def answer(status: int, message: str) -> Callable[[web.Request], web.Response]:
    return lambda _request: web.json_response({"message": message}, status=status)


@dataclass
class EventScene:
    """A recorder that runs, and the API server that it speaks with."""

    server: EventServer
    recorder: EventRecorder
    known: Known

    def notices(self, number: int) -> None:
        self.recorder.on_change(NoticeChanged(None, notice(number), Clock().now()))

    def decides(self, reason: str) -> None:
        job = running_job()
        self.recorder.on_change(
            JobChanged(None, replace(job, decision=replace(job.decision, reason=reason)), Clock().now())
        )

    def outcomes(self) -> Mapping[str, int]:
        return {str(outcome): count for outcome, count in self.recorder.outcomes.items() if count}


async def _nobody() -> dict[str, str]:
    return {}


@asynccontextmanager
async def recording(
    *, timeout_seconds: float = 5.0, may_write: Callable[[], bool] = always, **limits: float
) -> AsyncIterator[EventScene]:
    events, known = EventServer(), Known()
    events.open.set()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", events.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    access = Access(url=url, namespace="", tls=None, credentials=_nobody)
    server = ApiServer(access, timeout_seconds, may_write=may_write)
    bounds = replace(EventLimits(), **limits)  # type: ignore[arg-type]
    recorder = EventRecorder(server, known, "pod-1", Clock(), Bulkhead(Clock()), bounds)
    task = asyncio.create_task(recorder.run())
    try:
        yield EventScene(events, recorder, known)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.close()
        await runner.cleanup()
