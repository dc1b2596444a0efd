"""Notices and jobs that the version before stored, with every field set in one of them. See previous/README.md."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from supervisor.domain.ids import Host, JobName, Source, cluster_job
from supervisor.domain.job import (
    ELASTIC,
    Acknowledgement,
    AcknowledgementKind,
    Decision,
    Framework,
    Growth,
    Observed,
    Phase,
    Result,
    Spec,
    Stop,
    SupervisedJob,
)
from supervisor.domain.notice import NoticeState, ReclaimNotice, Subject, SubjectKind

PREVIOUS = Path(__file__).parent / "previous"

T0 = 1_700_000_000.0
BOOT = "f1a1c9d2-5f0e-4a53-9d0e-3f7a2a0d7c11"
NODE = Subject(SubjectKind.NODE, "node-1", "i-bp1/a%b")
POD = Subject(SubjectKind.POD, "team/job-worker-1", "8c1b7c2e-0c70-4e0c-9a6f-3a3f2b1d9e77")

WITHDRAWN = ReclaimNotice(
    source=Source("aliyun"),
    subject=NODE,
    episode=1,
    state=NoticeState.WITHDRAWN,
    first_seen=T0 - 900.25,
    deadline=T0 - 600,
    announced="2023-11-14T22:03:20Z",
    message="Your instance will be released: 释放",
    session=7,
    revision=3,
    ended_at=T0 - 700.125,
)
ACTIVE = ReclaimNotice(
    source=Source("aliyun"),
    subject=NODE,
    episode=2,
    state=NoticeState.ACTIVE,
    first_seen=T0 + 0.123456,
    deadline=T0 + 300.5,
    announced="2023-11-14T22:18:20Z",
    message="",
    session=7,
    revision=4,
)
TIMELESS = ReclaimNotice(
    source=Source("pod-condition"),
    subject=POD,
    episode=1,
    state=NoticeState.ACTIVE,
    first_seen=T0,
    deadline=None,
    announced="",
    message="",
    session=0,
    revision=1,
)
DRILL = ReclaimNotice(
    source=Source("simulated"),
    subject=Subject(SubjectKind.NODE, "node-2", "uid-2"),
    episode=1,
    state=NoticeState.GONE,
    first_seen=T0 - 60,
    deadline=T0 - 30,
    announced="",
    message="A drill.",
    session=0,
    revision=2,
    ended_at=T0 - 20,
)
EXPIRED = ReclaimNotice(
    source=Source("aws"),
    subject=Subject(SubjectKind.NODE, "node-3", "uid-3"),
    episode=1,
    state=NoticeState.EXPIRED,
    first_seen=T0 - 8000,
    deadline=T0 - 7000,
    announced="2023-11-14T20:16:40Z",
    message="spot/terminate",
    session=1,
    revision=9,
    ended_at=T0 - 10,
)
EPISODES = (WITHDRAWN, ACTIVE, TIMELESS, DRILL, EXPIRED)
"""In the order in which they were stored."""

W1, W2, W3, W4 = (Host(f"job-worker-{number}") for number in range(4))

WAITING = SupervisedJob(
    name=JobName("waits"),
    uid="uid-waits",
    spec=Spec(framework=Framework.TORCHRUN, min_workers=2, max_workers=4, requested_workers=3, max_wait_seconds=3600.5),
    observed=Observed(launcher="l", instance="i", registered_at=T0),
    decision=Decision(generation=1, phase=Phase.WAITING, reason="It waits for hosts.", waiting_since=T0 + 0.5),
)
RUNNING = SupervisedJob(
    name=JobName("Runs. On_"),
    uid="uid-runs",
    spec=Spec(
        framework=Framework.HOROVOD,
        min_workers=1,
        max_workers=4,
        requested_workers=4,
        launcher_host=Host("node-9"),
    ),
    observed=Observed(
        launcher="launcher",
        instance="instance",
        registered_at=T0 - 500,
        revision=12,
        hosts=frozenset({W1, W2, W3}),
        run=1,
        running=True,
        restarts=2,
        applied=4,
    ),
    decision=Decision(
        generation=4,
        phase=Phase.RUNNING,
        reason="It runs.",
        run=1,
        hosts=frozenset({W1, W2, W3}),
    ),
)
OPERATED = SupervisedJob(
    name=cluster_job("team", "trainingjob", "job"),
    uid="2b9f27b4-91a9-4f6f-8a3d-6a1fd43d4b6e",
    spec=Spec(
        framework=Framework.HOROVOD,
        min_workers=1,
        max_workers=4,
        requested_workers=4,
        max_wait_seconds=60.0,
        launcher_host=Host("job-launcher"),
        capabilities=ELASTIC,
        least_to_start=2,
    ),
    observed=Observed(
        launcher="2b9f27b4-91a9-4f6f-8a3d-6a1fd43d4b6e",
        instance="1",
        registered_at=T0 - 1000.5,
        revision=3,
        hosts=frozenset({W1, W2, W4}),
        run=2,
        running=True,
        launcher_lost_since=T0 - 3.25,
        restarts=1,
        applied=8,
    ),
    decision=Decision(
        generation=9,
        phase=Phase.SHRINKING,
        reason="job-worker-1 is left out because of a notice.",
        run=2,
        hosts=frozenset({W1, W2, W3}),
        exclusions=frozenset({W2, W3}),
        excluded_at=9,
        window_until=T0 + 1.25,
        capacity_since=T0 - 2,
        growth=Growth(workers=4, number=5, until=T0 + 600, failed=1),
    ),
)
STOPPING = SupervisedJob(
    name=cluster_job("default", "trainingjob", "stops"),
    uid="uid-stops",
    spec=Spec(
        framework=Framework.TORCHRUN,
        min_workers=3,
        max_workers=3,
        requested_workers=3,
        capabilities=ELASTIC,
    ),
    observed=Observed(
        launcher="uid-stops",
        instance="2",
        registered_at=T0 - 30,
        revision=1,
        hosts=frozenset({W1, W2, W3}),
        run=3,
        running=True,
        ending=True,
        acknowledgement=Acknowledgement(run=3, generation=6, kind=AcknowledgementKind.SAVED, step=1234, at=T0 - 1.5),
    ),
    decision=Decision(
        generation=6,
        phase=Phase.STOPPING,
        reason="Too few hosts would remain.",
        run=3,
        hosts=frozenset({W1, W2, W3}),
        exclusions=frozenset({W1}),
        excluded_at=6,
        below_min_since=T0 - 4,
        resume_until=T0 + 40,
        failed_resumes=2,
        not_before=T0 + 20.75,
        stop=Stop(run=3, generation=6, since=T0 - 4.5, everyone=True),
    ),
)
FINISHED = SupervisedJob(
    name=JobName("ended"),
    uid="uid-ended",
    spec=Spec(framework=Framework.HOROVOD, min_workers=1, max_workers=1, requested_workers=1),
    observed=Observed(
        launcher="l",
        instance="i",
        registered_at=T0 - 90000,
        run=1,
        exit_code=-9,
        result=Result.TIMED_OUT,
        acknowledgement=Acknowledgement(run=1, generation=2, kind=AcknowledgementKind.LEFT, step=None, at=T0),
    ),
    decision=Decision(generation=3, phase=Phase.FINISHED, reason="It has ended."),
)
QUIET = replace(
    OPERATED,
    name=cluster_job("team", "trainingjob", "quiet"),
    observed=replace(OPERATED.observed, hosts=frozenset({W1, W2}), launcher_lost_since=None),
    decision=Decision(
        generation=9, phase=Phase.RUNNING, reason="It runs.", run=2, hosts=frozenset({W1, W2}), excluded_at=7
    ),
)
JOBS = (WAITING, RUNNING, OPERATED, STOPPING, FINISHED, QUIET)


def stored(plural: str) -> list[Any]:
    """The resources of one kind, as the API server returned them."""
    found: list[Any] = json.loads((PREVIOUS / f"{plural}.json").read_text("utf-8"))
    return found


def without_end(value: Any) -> Any:
    """The version before has stored no end of jobs."""
    if not isinstance(value, SupervisedJob):
        return value
    return replace(value, observed=replace(value.observed, ended_at=None))
