"""Jobs that a hub of many clusters has created in this one."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.cluster.annotations import OURS, REQUESTED, STATUS, SUSPENDED_BY
from supervisor.domain import order
from supervisor.domain.ids import JobName
from supervisor.domain.job import Result, SupervisedJob
from supervisor.jobs.actuator import Actuator, ActuatorDependencies
from supervisor.jobs.observation import TAKEN_BACK
from supervisor.jobs.registry import KINDS
from supervisor.jobs.trainingjob.kind import size_changes
from tests.supervisor.decide.decide_builders import T0
from tests.supervisor.jobs.every_kind import BY_NAME, OPTED_IN, PREFIX, replicas, spec_of
from tests.supervisor.jobs.hub_member import HubMember
from tests.testkit.waiting import until

_MIN_TWO = {**OPTED_IN, f"{PREFIX}min-workers": "2"}
_RESIZED = ["mpijob", "pytorchjob", "tfjob", "vcjob", "batchjob"]
_FIXED = ["jobset"]
_TAKEN, _OTHER = JobName("taken"), JobName("other")


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize(("labels", "is_from_hub"), [({"karmada.io/managed": "true"}, True), ({}, False)])
def test_a_job_of_a_hub_is_known_by_its_label(kind: str, labels: dict[str, str], *, is_from_hub: bool) -> None:
    metadata = {"name": "bert", "namespace": "team", "uid": "job-uid", "resourceVersion": "7", "labels": labels}
    job = BY_NAME[kind].decode(msgspec.json.encode({"metadata": metadata}))
    assert job.from_hub is is_from_hub


@pytest.mark.parametrize("kind", _RESIZED)
async def test_a_hub_has_nothing_to_take_back_after_any_write(kind: str) -> None:
    """It compares after every request, and retains what the kind declares while the annotation for it is there."""
    member = HubMember(BY_NAME[kind], spec_of(kind, 4), _MIN_TWO)
    actions = member.actions()
    for workers in (2, 4):
        await actions.suspend(member.state)
        assert member.state.job.suspended
        await actions.resume(member.state, workers, 4)
        assert member.state.job.spec.replicas == workers
        assert (REQUESTED in member.annotations) is (workers < 4)
    await actions.end(member.state, Result.TIMED_OUT)
    await actions.resume(member.state, 2, 4)
    for workers in (3, 4):
        await actions.grow(member.state, workers, 1, 1.0)
        assert member.state.job.spec.replicas == workers
    assert member.taken_back == []
    assert member.writes >= 8
    assert not member.annotations.keys() & {each.mark for each in member.kind.hub.written}


@pytest.mark.parametrize("kind", _FIXED)
async def test_a_hub_has_nothing_to_take_back_of_a_job_of_one_size(kind: str) -> None:
    member = HubMember(BY_NAME[kind], spec_of(kind, 4), OPTED_IN)
    actions = member.actions()
    await actions.suspend(member.state)
    await actions.end(member.state, Result.TIMED_OUT)
    assert member.state.job.suspended
    await actions.resume(member.state, 4, 4)
    assert (member.state.job.suspended, member.writes, member.taken_back) == (False, 3, [])
    assert not member.annotations.keys() & {SUSPENDED_BY, STATUS}


async def test_a_hub_has_nothing_to_take_back_of_a_training_job_of_another_size() -> None:
    """The number of its workers is also in variables of its templates; an annotation suspends it."""
    kind = BY_NAME["trainingjob"]
    launcher = replicas(1)
    container = {"name": "main", "env": [{"name": "workers", "value": "4"}]}
    launcher["template"] = {"spec": {"containers": [container]}}
    spec = {"etReplicaSpecs": {"launcher": launcher, "worker": replicas(4)}}
    member = HubMember(kind, spec, OPTED_IN)
    for workers in (2, 4):
        await member.patch(member.read, size_changes(member.read, member.read.spec, workers, 4))
        assert member.read.spec.launcher.variables["workers"].value == str(workers)
    assert (member.writes, member.taken_back, member.object["spec"]) == (2, [], spec)


@pytest.mark.parametrize("kind", [*_RESIZED, *_FIXED])
def test_a_job_whose_hub_took_its_suspension_back_is_shown_and_left_alone(kind: str) -> None:
    """Until somebody removes the annotation; a supervised job is let go first, also one that was ended."""
    how, spec = BY_NAME[kind], spec_of(kind, 4)
    member = HubMember(how, spec, OPTED_IN)
    supervised = how.observe(member.state, None, T0)
    taken_back = HubMember(how, spec, {**OPTED_IN, SUSPENDED_BY: OURS})
    assert supervised is not None
    ended = replace(supervised, observed=replace(supervised.observed, result=Result.TIMED_OUT))
    assert how.observe(taken_back.state, supervised, T0) is how.observe(taken_back.state, ended, T0) is None
    shown = how.observe(taken_back.state, None, T0)
    assert shown is not None
    assert (shown.spec.refused, shown.spec.ignored, shown.decision.reason) == (True, (TAKEN_BACK,), TAKEN_BACK)
    assert how.observe(taken_back.state, shown, T0) == shown
    assert how.observe(member.state, shown, T0) is None


@pytest.mark.parametrize("kind", _RESIZED)
@pytest.mark.parametrize("labels", [{}, {"karmada.io/managed": "true"}])
async def test_only_a_hub_takes_a_suspension_back(kind: str, labels: Mapping[str, str]) -> None:
    """Without the label a person has resumed the job and left the mark, and it is supervised as before."""
    member = HubMember(BY_NAME[kind], spec_of(kind, 4), {**OPTED_IN, SUSPENDED_BY: OURS})
    member.object["metadata"]["labels"] = labels
    found: Any = BY_NAME[kind].observe(member.state, None, T0)
    assert found.spec.refused is bool(labels)


async def test_nothing_is_done_to_a_job_whose_hub_has_just_taken_its_suspension_back() -> None:
    """Also if that is not stored yet: the action may be tried again before."""
    how, spec = BY_NAME["pytorchjob"], spec_of("pytorchjob", 4)
    taken = HubMember(how, spec, {**OPTED_IN, SUSPENDED_BY: OURS})
    jobs = {_TAKEN: taken, _OTHER: HubMember(how, spec, OPTED_IN)}
    supervised = how.observe(jobs[_OTHER].state, None, T0)
    assert supervised is not None
    stored = {name: replace(supervised, name=name) for name in jobs}
    actuator = _actuator(jobs, stored)
    for job in stored.values():
        await actuator.carry_out(job, [order.SuspendRun(1)])
    acting = asyncio.create_task(actuator.run())
    await until(lambda: jobs[_OTHER].writes)
    acting.cancel()
    with suppress(asyncio.CancelledError):
        await acting
    assert taken.writes == 0


def _actuator(members: Mapping[JobName, HubMember], stored: Mapping[JobName, SupervisedJob]) -> Actuator:
    kinds = SimpleNamespace(
        of=lambda name: SimpleNamespace(actions=members[name].actions()), state=lambda name: members[name].state
    )
    return Actuator(
        ActuatorDependencies(
            jobs=cast("Any", kinds),
            pods=cast("Any", None),
            store=cast("Any", SimpleNamespace(snapshot=lambda: SimpleNamespace(jobs=stored))),
            report=cast("Any", None),
            may_act=lambda: True,
            connected=lambda _: (),
            clock=Clock(),
            cluster_now=lambda: T0,
            bulkhead=Bulkhead(Clock()),
        )
    )
