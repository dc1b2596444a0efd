"""What a person asks of a cluster's job by annotations of its object, the same for all kinds."""

from dataclasses import replace

import pytest

from supervisor.domain.job import RequestKind, Result, UserRequest
from supervisor.jobs.annotated import with_request
from supervisor.jobs.observation import marked_result
from tests.supervisor.decide.decide_builders import T0, observing, running_job

PREFIX = "job-supervisor.kube-ai.io/"
SUSPEND, STOP = f"{PREFIX}suspend", f"{PREFIX}stop"


@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        ({}, None),
        ({SUSPEND: "false"}, None),
        ({SUSPEND: "ann: power cut"}, (RequestKind.SUSPEND, "ann", "power cut")),
        ({SUSPEND: "ann: power cut: at noon"}, (RequestKind.SUSPEND, "ann", "power cut: at noon")),
        ({SUSPEND: "oidc:ann: power cut: at noon"}, (RequestKind.SUSPEND, "oidc:ann", "power cut: at noon")),
        ({SUSPEND: "system:serviceaccount:a:b: "}, (RequestKind.SUSPEND, "system:serviceaccount:a:b", "")),
        ({SUSPEND: "ann:power cut"}, (RequestKind.SUSPEND, "ann", "power cut")),
        ({SUSPEND: "ann:"}, (RequestKind.SUSPEND, "ann", "")),
        ({SUSPEND: "true"}, (RequestKind.SUSPEND, "Somebody", "")),
        ({SUSPEND: ""}, (RequestKind.SUSPEND, "Somebody", "")),
        ({SUSPEND: "power cut"}, (RequestKind.SUSPEND, "Somebody", "power cut")),
        ({SUSPEND: f"{'x' * 300}: why"}, (RequestKind.SUSPEND, "Somebody", "why")),
        ({SUSPEND: "a\x1bnn: \x1b[2J"}, (RequestKind.SUSPEND, "a nn", "[2J")),
        ({STOP: "bob"}, (RequestKind.STOP, "Somebody", "bob")),
        ({STOP: "bob: over", SUSPEND: "ann: power cut"}, (RequestKind.STOP, "bob", "over")),
        ({STOP: "false", SUSPEND: "ann: power cut"}, (RequestKind.SUSPEND, "ann", "power cut")),
    ],
)
def test_an_annotation_is_a_request(annotations: dict[str, str], asked: tuple[RequestKind, str, str] | None) -> None:
    """Whatever is written there is a request, unless it is `false`; to stop the job counts more."""
    request = with_request(running_job(), annotations, T0).observed.request
    assert (None if request is None else (request.kind, request.by, request.reason)) == asked


def test_a_request_keeps_its_time_and_goes_with_its_annotation() -> None:
    """A changed reason is the same request; nothing changes while the annotation does not, so nothing is written."""
    job = with_request(running_job(), {SUSPEND: "ann: power cut"}, T0)
    assert with_request(job, {SUSPEND: "ann: power cut"}, T0 + 60) == job
    changed = with_request(job, {SUSPEND: "ann: no budget"}, T0 + 60).observed.request
    assert changed == UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="no budget", at=T0)
    stopped = with_request(job, {STOP: "ann: no budget"}, T0 + 60).observed.request
    assert stopped == UserRequest(kind=RequestKind.STOP, by="ann", reason="no budget", at=T0 + 60)
    assert with_request(job, {}, T0 + 60) == running_job()


@pytest.mark.parametrize(
    ("status", "result"), [("timeout", Result.TIMED_OUT), ("stopped", Result.TERMINATED), ("other", None), (None, None)]
)
def test_a_mark_tells_how_a_job_was_ended(status: str | None, result: Result | None) -> None:
    assert marked_result({} if status is None else {f"{PREFIX}job-status": status}) is result


def test_a_request_changes_nothing_else() -> None:
    job = observing(running_job(), ending=True)
    request = UserRequest(kind=RequestKind.SUSPEND, by="ann", at=T0)
    assert with_request(job, {SUSPEND: "ann:"}, T0) == replace(job, observed=replace(job.observed, request=request))
