"""What is kept of the jobs of one kind, and when it is read anew."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.access import Access
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.gangs import GangMember, PodGroup
from supervisor.cluster.objects import Pod
from supervisor.cluster.view import ClusterView
from supervisor.domain.ids import JobName
from supervisor.jobs.cache import JobCache
from supervisor.jobs.kind import Admission, JobPodRole, JobState
from supervisor.jobs.trainingjob.kind import TRAININGJOB
from supervisor.jobs.trainingjob.objects import TrainingJob
from tests.supervisor.jobs.test_jobs_gangs import pod_group
from tests.supervisor.jobs.trainingjob.trainingjob_objects import LABELS, job, pod, workers

NAME = JobName("team/trainingjob.bert")


class JobCacheScene:
    """A job with eight workers in a cache, filled as its followers fill it, which counts how often it reads a role."""

    def __init__(self, server: ApiServer) -> None:
        self.roles = 0

        def role(labels: Mapping[str, str]) -> JobPodRole | None:
            self.roles += 1
            return TRAININGJOB.role(labels)

        self.admission: Admission | None = None
        self.groups: list[PodGroup] = []
        view = ClusterView(server, LABELS, Clock(), lambda: None, Bulkhead(Clock()))
        self.cache = JobCache(
            replace(TRAININGJOB, role=role),
            server,
            view,
            Clock(),
            Bulkhead(Clock()),
            admissions=lambda _state: self.admission,
            groups=lambda _state: self.groups,
        )
        self._pods_changed = view.pods_changed
        self.cache.wrote(job())
        for each in workers(8):
            self.moved(None, each)

    def moved(self, before: Pod | None, after: Pod | None) -> None:
        for hook in self._pods_changed:
            hook(before, after)

    def state(self) -> JobState[TrainingJob]:
        state = self.cache.state(NAME)
        assert state is not None
        return state


async def _nobody() -> Mapping[str, str]:
    return {}


@pytest.fixture
async def scene() -> AsyncIterator[JobCacheScene]:
    server = ApiServer(Access(url="http://127.0.0.1:1", namespace="", tls=None, credentials=_nobody), 1.0)
    yield JobCacheScene(server)
    await server.close()


def test_the_pods_of_a_job_are_read_once_until_one_of_them_changes(scene: JobCacheScene) -> None:
    """Each pass of the control loop asks for every running job; 500 agents that connect at once are 500 passes."""
    for _ in range(500):
        assert len(scene.state().workers) == 8
    once = scene.roles
    assert once <= 2 * 8
    scene.moved(None, pod("launcher"))
    assert scene.state().launcher is not None
    assert scene.roles <= once + 2 * 9


def test_a_state_shows_each_change_of_the_job_of_its_pods_and_of_its_queue(scene: JobCacheScene) -> None:
    before = scene.state()
    assert (before.job.phase, before.admission) == ("", None)
    gone = next(each for each in workers(8))
    scene.moved(gone, None)
    assert len(scene.state().workers) == 7
    scene.cache.wrote(job(status={"phase": "Running"}, resourceVersion="8"))
    assert scene.state().job.phase == "Running"
    scene.admission = Admission("no quota")
    assert scene.state().admission == Admission("no quota")


def test_nothing_is_kept_of_the_name_of_a_job_that_is_gone(scene: JobCacheScene) -> None:
    """The control loop asks for the placements of stored jobs, which outlive their objects."""
    assert len(scene.cache.placements(NAME)) == 8
    gone = JobName("team/trainingjob.gone")
    assert scene.cache.placements(gone) is scene.cache.placements(gone), "it has not changed"
    assert scene.cache.placements(gone) == {}
    assert gone not in scene.cache._placements


def test_a_podgroup_concerns_the_jobs_that_own_it_or_whose_pods_name_it(scene: JobCacheScene) -> None:
    """A job without a gang is not read anew for each of the others' PodGroups."""
    uid = scene.state().job.metadata.uid
    assert scene.cache.in_gang(pod_group(3, "bert", owner=uid)) == [NAME]
    assert not scene.cache.in_gang(pod_group(3, "bert"))
    scene.moved(None, replace(pod("launcher"), gang=GangMember("bert")))
    assert scene.cache.in_gang(pod_group(3, "bert")) == [NAME]
    scene.groups = [pod_group(3)]
    assert scene.state().groups == scene.groups
