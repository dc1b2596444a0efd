"""Facts name the hosts that a job must not use, however they have changed since the last call."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from servicekit.clock import Clock
from supervisor.control.facts import Facts, NoCluster
from supervisor.decide.explanation import Lack
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.notice import NODE_CONDITION, NoticeClass, NoticeState
from supervisor.ingest.agent_registry import AgentRegistry, AgentState, SourceState, UnconfirmedNotices
from supervisor.settings import Settings
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import (
    METADATA,
    T0,
    first,
    hosts,
    notice,
    running_job,
    spec,
    waiting_job,
)
from tests.supervisor.store.store_behaviour import opened, put_job, to

JOB = cluster_job("team", "trainingjob", "bert")
OTHER = cluster_job("team", "trainingjob", "gpt")


class Around(NoCluster):
    def __init__(self) -> None:
        self.placed: dict[JobName, Mapping[Host, Placement]] = {}

    def place(self, job: JobName, **nodes: str) -> None:
        self.placed[job] = {Host(pod): Placement(f"uid-{pod}", Host(node)) for pod, node in nodes.items()}

    def placements(self, name: JobName) -> Mapping[Host, Placement] | None:  # type: ignore[override]  # They are here.
        return self.placed.get(name)


class FactsScene:
    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.now = T0
        self.around = Around()
        self.unconfirmed = UnconfirmedNotices(lambda: None, Clock())
        self.agents = AgentRegistry(lambda: None, lambda: T0)
        self.facts = Facts(store, self.agents, self.unconfirmed, Settings(), self.around, now=lambda: self.now)

    async def announce(self, state: NoticeState = NoticeState.ACTIVE) -> None:
        """What is stored of the node n1."""
        value = notice(1, state=state)
        await self.store.put_notice(value.id, to(value))

    async def connect(self, number: int, notice_class: NoticeClass | None, left: float = 0.0) -> None:
        """An agent that announces a notice of a class, or none."""
        node = Host(f"n{number}")
        state = SourceState.CLEAR if notice_class is None else SourceState.NOTICED
        self.agents.connect(
            AgentState(node=node, uid=f"uid-{number}", session=1, connected=True, sources={METADATA: state}), object()
        )
        if notice_class is not None:
            value = replace(notice(number), notice_class=notice_class, deadline=T0 + left)
            await self.store.put_notice(value.id, to(value))

    def noticed(self, job: JobName = JOB) -> set[str]:
        return set(self.facts.noticed(job))


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[FactsScene]:
    async with opened(lambda: SqliteStore.open(tmp_path / "store.sqlite")) as store:
        yield FactsScene(store)


async def test_a_pod_is_noticed_with_its_node_alone(scene: FactsScene) -> None:
    scene.around.place(JOB, a="n1", b="n2")
    scene.around.place(OTHER, c="n2")
    await scene.announce()
    assert (scene.noticed(), scene.noticed(OTHER)) == ({"a"}, set())


async def test_a_pod_that_comes_to_a_noticed_node_is_noticed_at_once(scene: FactsScene) -> None:
    scene.around.place(JOB, a="n1", b="n2")
    await scene.announce()
    assert scene.noticed() == {"a"}
    scene.around.place(JOB, b="n2", c="n1", d="n1")
    assert scene.noticed() == {"c", "d"}


async def test_a_withdrawn_notice_is_none_any_more(scene: FactsScene) -> None:
    scene.around.place(JOB, a="n1")
    await scene.announce()
    assert scene.noticed() == {"a"}
    await scene.announce(NoticeState.WITHDRAWN)
    assert scene.noticed() == set()
    await scene.announce()
    assert scene.noticed() == {"a"}


async def test_a_notice_binds_the_machine_that_is_there_unless_its_metadata_denies_it(scene: FactsScene) -> None:
    found = notice(1)
    condition = replace(found, source=NODE_CONDITION, subject=replace(found.subject, uid="of the Node object"))
    replaced = replace(found, subject=replace(found.subject, uid="an earlier machine"))
    assert [scene.facts.binds(each) for each in (found, condition, replaced)] == [True, True, True]
    await scene.connect(1, None)
    assert [scene.facts.binds(each) for each in (found, condition, replaced)] == [True, False, False]


async def test_a_thread_sees_what_the_loop_has_looked_at_last_and_takes_no_look_of_its_own(scene: FactsScene) -> None:
    """A page is rendered there, while the loop decides."""
    scene.around.place(JOB, a="n1")
    assert scene.noticed() == set()
    await scene.announce()
    assert await asyncio.to_thread(scene.noticed) == set()
    assert scene.noticed() == {"a"}


async def test_what_is_not_durable_yet_is_shown_alone(scene: FactsScene) -> None:
    scene.around.place(JOB, a="n1")
    waiting = notice(1)
    scene.unconfirmed.put(self_said := object(), waiting.id, waiting)
    assert (scene.noticed(), set(scene.facts.shown(JOB))) == (set(), {"a"})
    scene.unconfirmed.drop(self_said, waiting.id)
    assert set(scene.facts.shown(JOB)) == set()


async def test_a_job_that_changes_alone_takes_no_new_look_at_pods(scene: FactsScene) -> None:
    """With 51 jobs of 4,000 pods that took most of a pass."""
    scene.around.place(JOB, a="n1")
    await scene.announce()
    job = replace(running_job(), name=JOB)
    await put_job(scene.store, job)
    before = scene.facts.noticed(JOB)
    await put_job(scene.store, replace(job, observed=replace(job.observed, restarts=1)))
    assert scene.facts.noticed(JOB) is before


async def test_a_job_that_is_gone_is_forgotten(scene: FactsScene) -> None:
    scene.around.place(JOB, a="n1")
    await scene.announce()
    job = replace(running_job(), name=JOB)
    await put_job(scene.store, job)
    before = scene.facts.noticed(JOB)
    await scene.store.forget_job(JOB, job.uid)
    after = scene.facts.noticed(JOB)
    assert after == before
    assert after is not before


@pytest.mark.parametrize(
    ("launcher", "pods", "gone"),
    [
        (None, ["n1", "n2"], {"n3"}),
        ("boss", ["boss", "n1", "n2"], {"n3"}),
        ("boss", ["n1", "n2"], set()),
        (None, [], set()),
        ("boss", [], set()),
    ],
)
async def test_pods_that_are_lost_are_gone_with_or_without_a_launcher(
    scene: FactsScene, launcher: str | None, pods: list[str], gone: set[str]
) -> None:
    """But where the launcher is lost as well, or all that there was, the run has ended."""
    job = replace(running_job(workers=3), name=JOB)
    job = replace(job, spec=replace(job.spec, launcher_host=None if launcher is None else Host(launcher)))
    scene.around.place(JOB, **dict.fromkeys(pods, "node"))
    assert scene.facts.gone(job) == gone
    assert not scene.facts.gone(replace(job, observed=replace(job.observed, running=False)))


async def test_pods_are_terminating_if_they_were_asked_to_while_excluded_or_noticed(scene: FactsScene) -> None:
    """The other pods of a job of thousands are not looked at."""
    job = replace(running_job(workers=4), name=JOB)
    job = replace(job, decision=replace(job.decision, exclusions=hosts(1, 2)))
    placed = {f"n{number}": Placement(f"uid-{number}", Host("node"), terminating=number != 2) for number in range(1, 5)}
    scene.around.placed[JOB] = {Host(name): placement for name, placement in placed.items()}
    assert scene.facts.terminating(job, hosts(3)) == hosts(1, 3)
    scene.around.placed.clear()
    assert scene.facts.terminating(job, hosts(3)) == hosts()


async def test_a_waiting_job_lacks_exactly_the_hosts_that_it_is_not_granted(scene: FactsScene) -> None:
    """A schedule that is near keeps runs from starting before it is acted on; a hint does not."""
    policy = Settings()
    near = (policy.scheduled_horizon_seconds + policy.scheduled_avoid_seconds) / 2
    await scene.connect(1, None)
    await scene.connect(2, NoticeClass.HINT)
    await scene.connect(3, NoticeClass.SCHEDULED, near)
    await scene.connect(4, NoticeClass.SCHEDULED, policy.scheduled_avoid_seconds + 60)
    await scene.connect(5, NoticeClass.SUDDEN, 60.0)
    job = waiting_job(spec(1, 6), first(6))
    granted = scene.facts.granted({job.name: job})[job.name].hosts
    assert granted == hosts(1, 2, 4)
    lacks = {one.host: one.lack for one in scene.facts.missing(job).hosts}
    assert lacks == {Host("n3"): Lack.NOTICE, Host("n5"): Lack.NOTICE, Host("n6"): Lack.NO_AGENT}


async def test_a_host_of_another_job_is_in_use(scene: FactsScene) -> None:
    await scene.connect(1, None)
    other, job = running_job(spec(1, 1), 1, name="other"), waiting_job(spec(1, 1), first(1))
    scene.facts.granted({each.name: each for each in (other, job)})
    assert [(one.host, one.lack, one.why) for one in scene.facts.missing(job).hosts] == [
        ("n1", Lack.IN_USE, "used by job other")
    ]
