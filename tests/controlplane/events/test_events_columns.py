"""kubectl shows the columns and conditions of both resources, also of objects stored by an older version."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.domain.job import Phase, Stop, SupervisedJob
from supervisor.domain.notice import NoticeState
from supervisor.store.kubernetes import KubernetesStore
from tests.controlplane.ingest.ingest_cluster import IngestScene
from tests.supervisor.decide.decide_builders import T0, answered, hosts, notice, running_job
from tests.supervisor.store.store_behaviour import put_job, to
from tests.testkit.controlplane.installed import job_path
from tests.testkit.controlplane.kubectl import columns, kubectl

_JOB = "standalone.job"


def decided(job: SupervisedJob, **changes: Any) -> SupervisedJob:
    decision = replace(job.decision, generation=job.decision.generation + 1, **changes)
    return replace(job, decision=decision)


async def stored(store: KubernetesStore, before: SupervisedJob, after: SupervisedJob) -> None:
    assert await store.decide(before, after.decision)


async def test_columns_say_what_happens_and_why(here: IngestScene, tmp_path: Path) -> None:
    """In both widths, for a job that shrinks and one notice of each state."""
    cluster = here.place.plane.cluster
    running = running_job()
    reason = "n2, n3 will be reclaimed, says metadata; continuing with 4 hosts (minimum 3)."
    shrinking = decided(running, phase=Phase.SHRINKING, exclusions=hosts(2, 3), reason=reason)
    async with here.place.opened() as store:
        await put_job(store, running)
        await stored(store, running, shrinking)
        for number, state in enumerate(NoticeState):
            ended = None if state is NoticeState.ACTIVE else T0 + 9
            one = replace(notice(number, left=38.4), state=state, ended_at=ended)
            await store.put_notice(one.id, to(one))
    (job,) = columns(await kubectl(cluster, tmp_path, "get", "sj"))
    assert {**job, "AGE": ""} == {
        "NAME": _JOB,
        "PHASE": "Shrinking",
        "WORKERS": "4",
        "EXCLUDED": "2",
        "MIN": "3",
        "RUN": "1",
        "AGE": "",
        "REASON": reason,
    }
    (wide,) = columns(await kubectl(cluster, tmp_path, "get", "supervisedjobs", "-o", "wide"))
    assert {name: wide[name] for name in wide.keys() - job.keys()} == {
        "MAX": "6",
        "REQUESTED": "6",
        "RESTARTS": "0",
        "SAVED STEP": "",
        "STOPPED": "",
        "FRAMEWORK": "horovod",
    }
    notices = columns(await kubectl(cluster, tmp_path, "get", "rn", "--sort-by", ".spec.subject.name", "-o", "wide"))
    assert [(each["SUBJECT"], each["STATE"], each["REASON"]) for each in notices] == [
        ("n0", "active", "Node n0 will be reclaimed at 2023-11-14T22:13:58Z, says metadata."),
        ("n1", "withdrawn", "Node n1 will not be reclaimed after all, says metadata."),
        ("n2", "gone", "Node n2 is gone, as metadata had announced."),
        ("n3", "expired", "Node n3 is still there, though metadata had announced its end."),
    ]
    assert notices[0]["DEADLINE"].startswith("2023-11-14T22:13:58.")


async def test_conditions_can_be_waited_for(here: IngestScene, tmp_path: Path) -> None:
    """From the first exclusion to the suspension, with what rank 0 has saved."""
    cluster, running = here.place.plane.cluster, running_job()
    stop = Stop(run=1, generation=6, since=T0 + 5)
    stopping = decided(running, phase=Phase.STOPPING, stop=stop, reason="Too few would be left: stopping.")
    suspended = decided(stopping, phase=Phase.SUSPENDED, reason="Rank 0 has saved a checkpoint of step 7.")

    async def holds(condition: str) -> None:
        await kubectl(cluster, tmp_path, "wait", "--timeout=20s", f"--for=condition={condition}", "sj", _JOB)

    async with here.place.opened() as store:
        await put_job(store, running)
        await holds("Running")
        await holds("Disrupted=False")
        await stored(store, running, stopping)
        await holds("Disrupted")
        saved = await store.put_job(running.name, lambda known: None if known is None else answered(known))
        assert saved is not None
        await stored(store, saved, suspended)
        await holds("Suspended")
        await holds("Running=False")
    (wide,) = columns(await kubectl(cluster, tmp_path, "get", "sj", "-o", "wide"))
    assert (wide["SAVED STEP"], wide["PHASE"]) == ("7", "Suspended")
    described = await kubectl(cluster, tmp_path, "describe", "sj", _JOB)
    assert described.count(suspended.decision.reason) == 1 + 5


async def test_what_was_stored_before_is_read_and_gets_its_conditions_with_its_next_change(here: IngestScene) -> None:
    running = running_job()
    async with here.place.opened() as store:
        await put_job(store, running)
    earlier = await here.api.get(job_path(_JOB))
    conditions = [each for each in earlier["status"]["conditions"] if each["type"] != "Disrupted"]
    assert len(conditions) == 4
    await here.api.patch(f"{job_path(_JOB)}/status", {"status": {"conditions": conditions}})
    before = await here.api.get(job_path(_JOB))
    async with here.place.opened() as store:
        known = store.snapshot().jobs[running.name]
        assert known == running
        await put_job(store, known)
        assert (await here.api.get(job_path(_JOB)))["metadata"] == before["metadata"]
        requests = store.server.requests
        await stored(store, known, decided(known, phase=Phase.SHRINKING, exclusions=hosts(2), reason="It shrinks."))
        assert store.server.requests - requests <= 2  # One write; the other is a watch that begins again, if at all.
    after = {each["type"]: each for each in (await here.api.get(job_path(_JOB)))["status"]["conditions"]}
    assert after["Disrupted"]["status"] == "True"
    assert after["Running"]["lastTransitionTime"] == conditions[0]["lastTransitionTime"]
