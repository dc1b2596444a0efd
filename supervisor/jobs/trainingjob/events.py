"""Kubernetes Events on a TrainingJob: what was decided about it, for those who look at the job and not at us."""

import asyncio
from collections import deque
from collections.abc import Collection as AnyOf
from datetime import UTC, datetime

import msgspec

from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.collection import Collection, Kind
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, ChangedMeanwhileError, NotThereError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.wakeup import Wakeup
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.jobs.trainingjob.objects import OURS, TRAINING_JOBS

_EVENTS = Kind(group="", version="v1", kind="Event", plural="events", namespaced=True)
_WARNINGS = (Phase.STOPPING, Phase.TIMED_OUT)
_MOST_WAITING = 1000
_RETRY_SECONDS = 1.0
_MOST_REASON = 1000

_Notable = tuple[str, Phase, frozenset[Host], int]


class _Event(msgspec.Struct, frozen=True):
    metadata: Metadata


class Recorder:
    """Says each decision once that changes where a job stands; `run` sends what `decided` was told of."""

    def __init__(self, server: ApiServer, clock: Clock) -> None:
        self._events = Collection(server, _EVENTS, lambda data: msgspec.json.decode(data, type=_Event))
        self._clock = clock
        self._fault = Fault("events on TrainingJobs", clock)
        self._said: dict[JobName, _Notable] = {}
        self._waiting: deque[tuple[SupervisedJob, float]] = deque(maxlen=_MOST_WAITING)
        self._wakeup = Wakeup()

    def decided(self, job: SupervisedJob) -> None:
        """A decision is to be carried out, perhaps not for the first time."""
        growth = job.decision.growing
        asked = 0 if growth is None else growth.workers
        notable = (job.uid, job.decision.phase, job.decision.exclusions, asked)
        if self._said.get(job.name) != notable:
            self._said[job.name] = notable
            self._waiting.append((job, self._clock.now()))
            self._wakeup.set()

    def forget_others(self, jobs: AnyOf[JobName]) -> None:
        """Forgets what was said of jobs that are gone, once there are more of them than of those."""
        if len(self._said) > 2 * len(jobs):
            self._said = {name: said for name, said in self._said.items() if name in jobs}

    async def run(self) -> None:
        """Root task."""
        while True:
            while self._waiting:
                await self._say(*self._waiting.popleft())
            await self._wakeup.wait()

    async def _say(self, job: SupervisedJob, at: float) -> None:
        """An event is worth waiting for, but nobody waits for an event."""
        key, event = _event(job, at)
        while True:
            try:
                await self._events.make(key, event)
            except ApiUnavailableError as error:
                self._fault.failed(str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except (ChangedMeanwhileError, NotThereError):
                pass  # It was said before a restart, or the namespace is gone.
            except ApiError as error:
                self._fault.failed(str(error))
                return
            self._fault.recovered()
            return


def _event(job: SupervisedJob, at: float) -> tuple[ObjectKey, dict[str, object]]:
    """Named by what it says, so that it is said once, whoever says it again."""
    namespace, _, resource = job.name.partition("/")
    name = resource.partition(".")[2]
    decision = job.decision
    instant = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "namespace": namespace,
        "name": name,
        "uid": job.uid,
    }
    return ObjectKey(namespace, f"{name}.{job.uid[:8]}.{decision.generation}"), {
        "involvedObject": about,
        "reason": decision.phase.value,
        "message": decision.reason[:_MOST_REASON],
        "type": "Warning" if decision.phase in _WARNINGS else "Normal",
        "source": {"component": OURS},
        "reportingComponent": OURS,
        "firstTimestamp": instant,
        "lastTimestamp": instant,
        "count": 1,
    }
