"""Follows TrainingJobs and their pods, and has stored what they mean: the writer of their `spec` and `observed`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from servicekit.backoff import Backoff
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.errors import ApiError, NotFoundError
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from servicekit.wakeup import Wakeup
from supervisor.cluster.objects import Pod
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, JobName, cluster_job, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.domain.placement import Placement
from supervisor.failpoints import At
from supervisor.jobs.trainingjob.objects import KIND, REQUESTED, TRAINING_JOBS, TrainingJob, read_training_job
from supervisor.jobs.trainingjob.seen import ObservedJob, supervised
from supervisor.store.interface import Store, StoreUnavailableError

_UNDEFINED_SECONDS = 10.0
"""Between two looks whether there are TrainingJobs by now: one request that costs nothing, and nobody waits for it."""

_ALL = Selection()
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 1.0

_log = structlog.get_logger()


class TrainingJobWatch:
    """What is known of all TrainingJobs. Somebody has to run `follow`, and where it is decided `observe` and `heed`.

    Args:
        server: Where they are.
        view: The cluster's pods.
        clock: For instants.
        selection: Of these jobs alone.
        undefined_seconds: Between two looks whether there is such a kind by now.

    Attributes:
        collection: Of all of them.
        smaller_moved: Called when a job has changed that was resumed smaller than it asked for.
    """

    def __init__(
        self,
        server: ApiServer,
        view: ClusterView,
        clock: Clock,
        selection: Selection = _ALL,
        undefined_seconds: float = _UNDEFINED_SECONDS,
    ) -> None:
        self.smaller_moved: Callable[[], None] = lambda: None
        self._undefined_seconds = undefined_seconds
        self._view = view
        self._clock = clock
        self._cache: Cache[TrainingJob] = Cache(self._job_moved)
        self.collection = ResourceClient(server, TRAINING_JOBS, read_training_job, selection)
        self._reflector = Reflector(self.collection, self._cache, clock)
        self._jobs: dict[JobName, TrainingJob] = {}
        self._names: dict[str, JobName] = {}
        self._counts: Counter[str] = Counter()
        self._placed: dict[JobName, Mapping[Host, Placement]] = {}  # Asked for with every pass, of all jobs.
        self._listed = False
        self._defined = True
        self._dirty: set[JobName] = set()
        self._wakeup = Wakeup()
        self._fault = Fault(f"watch of {TRAINING_JOBS.plural}", clock)
        self._store_fault = Fault("store of observed jobs", clock)
        view.pods_changed.add(self._pod_moved)

    def seen(self, name: JobName) -> ObservedJob | None:
        """A job as it is now; None where there is none of that name."""
        job = self._jobs.get(name)
        return None if job is None else ObservedJob(job, self._view.owned(job.metadata.uid).values())

    def wrote(self, job: TrainingJob) -> None:
        """The API server's answer to a change, which the watch may tell of later."""
        self._cache.record_write(job)

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """Where its workers and its launcher are."""
        placed = self._placed.get(name)
        if placed is None:
            seen = self.seen(name)
            pods = () if seen is None else seen.pods
            placed = {Host(pod.key.name): _placement(pod) for pod in pods if not pod.over}
            self._placed[name] = placed
        return placed

    def ask(self, name: JobName) -> ResourceRequest | None:
        """What its pods ask for; None where that is not known."""
        job = self._jobs.get(name)
        return None if job is None or job.wish is None else job.wish.ask

    def namesakes(self, name: JobName) -> bool:
        """Whether a job of another namespace has its name: the operator does not always tell their pods apart."""
        job = self._jobs.get(name)
        return job is not None and self._counts[job.metadata.name] > 1

    async def first(self) -> None:
        """Lists once; none where nobody has defined them.

        Raises:
            ApiError: It cannot be had.
        """
        try:
            await self._reflector.list()
        except NotFoundError:
            self._undefined()
        else:
            self._listed = self._defined = True
            self._fault.recovered()

    async def follow(self) -> None:
        """Root task: follows, whatever happens; also what is defined later."""
        backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        while True:
            try:
                await self.first()
                await self._follow(backoff)
            except ApiError as error:
                self._fault.failed(str(error))
                await asyncio.sleep(backoff.next())

    async def observe(self, store: Store) -> None:
        """Root task: has stored what is so, job by job, whenever it has changed."""
        self._dirty.update(self._jobs)
        self._wakeup.set()
        while True:
            await self._wakeup.wait(None)
            while self._dirty:
                await self.once(store)

    async def heed(self, store: Store) -> None:
        """Root task: looks again at jobs that were decided about, or forgotten."""
        version, before = 0, dict[JobName, SupervisedJob]()
        while True:
            snapshot = await store.changed(version)
            version = snapshot.version
            jobs = {name: job for name, job in snapshot.jobs.items() if kind_of(name) == KIND}
            self._look_at(name for name in jobs.keys() | before.keys() if jobs.get(name) is not before.get(name))
            before = jobs

    async def once(self, store: Store) -> None:
        """Stores what has changed since the last call; what cannot be stored now is tried again in a moment."""
        names, self._dirty = self._dirty, set()
        try:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(self._observe(store, name))
        except* StoreUnavailableError as errors:
            self._store_fault.failed(str(errors.exceptions[0]))
            self._dirty |= names
            await asyncio.sleep(_MAX_PAUSE)
        else:
            self._store_fault.recovered()

    async def _follow(self, backoff: Backoff) -> None:
        while self._defined:
            await self._reflector.once()
            backoff.reset()
        await asyncio.sleep(self._undefined_seconds)

    async def _observe(self, store: Store, name: JobName) -> None:
        seen, known = self.seen(name), store.snapshot().jobs.get(name)
        value = None if seen is None else supervised(seen, known, self._clock.now())
        if known is not None and (seen is None or value is None or known.uid != value.uid):
            if seen is None and not self._listed:
                return
            # An ended job stays on record after its object is gone, as long as the cluster's own collector leaves it.
            _log.info("job.released", job=name, uid=known.uid)
            await store.forget_job(name, known.uid)
            known = store.snapshot().jobs.get(name)
        if value is None or value == known:
            return

        def change(stored: SupervisedJob | None) -> SupervisedJob | None:
            present = self.seen(name)
            return None if present is None else supervised(present, stored, self._clock.now())

        await store.put_job(name, change)
        failpoint(At.OBSERVED_STORED)

    def _undefined(self) -> None:
        if self._defined:
            _log.info("trainingjobs.undefined", looks_again_seconds=self._undefined_seconds)
        self._defined = False

    def _moved(self, names: Collection[JobName]) -> None:
        for name in names:
            self._placed.pop(name, None)
        self._look_at(names)

    def _look_at(self, names: Iterable[JobName]) -> None:
        before = len(self._dirty)
        self._dirty.update(names)
        if len(self._dirty) > before:
            self._wakeup.set()

    def _job_moved(self, before: TrainingJob | None, after: TrainingJob | None) -> None:
        if before is not None:
            self._names.pop(before.metadata.uid, None)
            self._jobs.pop(_name(before), None)
            self._counts[before.metadata.name] -= 1
            if not self._counts[before.metadata.name]:
                del self._counts[before.metadata.name]
            self._moved([_name(before)])
        if after is not None:
            self._names[after.metadata.uid] = _name(after)
            self._jobs[_name(after)] = after
            self._counts[after.metadata.name] += 1
            self._moved([_name(after)])
            if REQUESTED in after.annotations:
                self.smaller_moved()

    def _pod_moved(self, before: Pod | None, after: Pod | None) -> None:
        owners = {each.owner.uid for each in (before, after) if each is not None and each.owner is not None}
        self._moved([self._names[uid] for uid in owners if uid in self._names])


def _placement(pod: Pod) -> Placement:
    return Placement(pod.metadata.uid, Host(pod.node), terminating=pod.deleted_at is not None)


def _name(job: TrainingJob) -> JobName:
    return cluster_job(job.metadata.namespace, KIND, job.metadata.name)
