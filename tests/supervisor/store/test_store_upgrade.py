"""Objects that the version before stored are read with every field."""

import json
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.decide.plan import plan
from supervisor.decide.reasons import HELD_UP, NO_ROOM, following, requested
from supervisor.decide.situation import JobFacts
from supervisor.domain.job import Capability, Observed, RequestKind, SupervisedJob, UserRequest
from supervisor.domain.notice import NoticeClass
from supervisor.jobs.registry import RESOURCES
from supervisor.store.codec import NOTICE_CODEC, Codec, StoredRecord, job_codec, read_job, read_notice
from supervisor.store.migrations import spec_fields, stored_job
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import POLICY, suspended_job
from tests.supervisor.store.store_behaviour import opened, put_job
from tests.supervisor.store.upgrade_values import (
    BOOT,
    EPISODES,
    FINISHED,
    JOBS,
    PREVIOUS,
    QUIET,
    RUNNING,
    T0,
    stored,
    without_end,
)

HOME = "default"
EPOCH = 3
NEWEST = {notice.id: notice for notice in EPISODES}
BY_NAME = {job.name: job for job in JOBS}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(PREVIOUS / "store.sqlite", tmp_path))


async def test_a_file_is_read_with_every_field_and_goes_on(file: Path) -> None:
    later = replace(RUNNING, observed=replace(RUNNING.observed, restarts=3))
    async with opened(lambda: SqliteStore.open(file)) as store:
        assert store.snapshot().notices == NEWEST
        assert store.snapshot().jobs == BY_NAME
        await put_job(store, later)
    async with opened(lambda: SqliteStore.open(file)) as store:
        assert store.snapshot().jobs == {**BY_NAME, later.name: later}
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT boot, at FROM boot_time").fetchone() == (BOOT, T0)
        kept = {(key, episode) for key, episode in connection.execute("SELECT id, episode FROM notices")}
        assert kept == {(notice.id, notice.episode) for notice in EPISODES}


async def test_a_file_still_says_what_the_version_before_asks_of_a_job(file: Path) -> None:
    """That version knows `operated` instead of the capabilities, and is started again after a rollback."""
    changed = [replace(job, observed=replace(job.observed, restarts=9)) for job in (QUIET, RUNNING)]
    async with opened(lambda: SqliteStore.open(file)) as store:
        for job in changed:
            await put_job(store, job)
    with closing(sqlite3.connect(file)) as connection:
        specs = {name: msgspec.json.decode(spec) for name, spec in connection.execute("SELECT name, spec FROM jobs")}
    assert [specs[job.name]["operated"] for job in changed] == [True, False]


@pytest.mark.parametrize(
    ("codec", "plural", "values"),
    [(NOTICE_CODEC, "reclaimnotices", EPISODES), (job_codec(HOME, lambda: T0, RESOURCES), "supervisedjobs", JOBS)],
    ids=["notices", "jobs"],
)
def test_resources_are_read_with_every_field(codec: Codec[Any, Any], plural: str, values: Iterable[Any]) -> None:
    """And lie where the present version looks for them, each with its conditions and the epoch of its leader."""
    read = read_notice if codec is NOTICE_CODEC else read_job
    records: list[StoredRecord[Any]] = [read(json.dumps(resource).encode()) for resource in stored(plural)]
    assert {record.metadata.key: without_end(record.value) for record in records} == {
        codec.object_key(value, ()): value for value in values
    }
    assert {record.epoch for record in records} == {EPOCH}
    for record, resource in zip(records, stored(plural), strict=True):
        spec, status = codec.encode(record.value, record, EPOCH)
        assert codec.metadata(record.value).get("ownerReferences") == resource["metadata"].get("ownerReferences")
        conditions = [each for each in status["conditions"] if each["type"] not in _LATER_CONDITIONS]
        assert _unworded(conditions) == _unworded(resource["status"]["conditions"])
        assert _known(spec, resource["spec"]) == resource["spec"]
        assert (
            _known({**status, "conditions": resource["status"]["conditions"]}, resource["status"]) == resource["status"]
        )


def test_a_job_ended_when_it_was_first_called_finished() -> None:
    """The version before has not stored when, but the transition of its condition."""
    jobs = [job for each in stored("supervisedjobs") if (job := read_job(json.dumps(each).encode(), HOME).value)]
    ended = {job.name: job.observed.ended_at for job in jobs if job.observed.ended_at is not None}
    assert ended == {FINISHED.name: datetime(2026, 11, 22, 15, 11, 26, 204372, UTC).timestamp()}


def _unworded(conditions: Iterable[Any]) -> list[Any]:
    """Without their messages, which a version may word differently."""
    return [{name: value for name, value in each.items() if name != "message"} for each in conditions]


def _known(now: Any, before: Any) -> Any:
    """What is written now, without the fields that were not there before."""
    if not isinstance(now, dict):
        return now
    return {name: _known(now[name], value) for name, value in before.items() if name in now}


def test_capabilities_of_a_later_version_are_left_out() -> None:
    fields = {**spec_fields(QUIET.spec), "capabilities": ["Grows", "Flies"]}
    job = stored_job(QUIET.name, QUIET.uid, fields, QUIET.observed, QUIET.decision)
    assert job.spec.capabilities == {Capability.GROWS}


ASKED = UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="power cut", at=T0)
OTHER = replace(ASKED, by="bob")


@pytest.mark.parametrize("facts", [JobFacts(), JobFacts(held_up=True)], ids=["no room", "held up"])
@pytest.mark.parametrize(
    ("reason", "request_", "held_up", "explained"),
    [
        (requested(ASKED) + " Rank 0 has saved a checkpoint of step 7.", ASKED, False, ASKED),
        (requested(ASKED), OTHER, False, None),
        ("n1 will be reclaimed, says aws.", ASKED, False, None),
        (HELD_UP, None, True, None),
        (following("Drill: n1 will be reclaimed.", HELD_UP), None, True, None),
        (NO_ROOM, None, False, None),
    ],
)
def test_what_a_reason_is_about_was_stored_as_a_sentence_alone(
    *, reason: str, request_: UserRequest | None, held_up: bool, explained: UserRequest | None, facts: JobFacts
) -> None:
    """It is read once, and what is decided then is what the version before would have decided."""
    before = suspended_job(since=T0)
    observed = replace(before.observed, request=request_)
    decision = replace(before.decision, reason=reason)
    job = stored_job(before.name, before.uid, spec_fields(before.spec), observed, decision)
    assert (job.decision.held_up, job.decision.request) == (held_up, explained)
    planned = plan(job, facts, T0 + 1, POLICY).decision
    if request_ is not None:
        assert planned.reason == (reason if explained else requested(request_))
    elif facts.held_up:
        assert planned.reason == following(reason, HELD_UP)
    else:
        assert planned.reason == (following(reason, NO_ROOM) if held_up else reason)


@pytest.mark.parametrize("job", [RUNNING, QUIET], ids=["stand-alone", "operated"])
def test_a_job_that_runs_notices_nothing(job: SupervisedJob) -> None:
    """Nothing new is decided about it as it was stored."""
    decided = plan(BY_NAME[job.name], JobFacts(notices={}, since=T0), T0 + 60, POLICY)
    assert decided.decision == job.decision


_LATER = {
    "queue",
    "notice_class",
    "cancellable",
    "checkpoint",
    "agreement",
    "epochs",
    "round",
    "request",
    "on_loss",
    "worker_multiple",
    "ignored",
    "refused",
    "gang",
    "run_since",
    "short_runs",
    "held_up",
    "hub",
    "resumes_from",
    "given_up_since",
}
"""Fields that the version before did not have."""

_LATER_CONDITIONS = {"Held"}
"""Conditions that the version before did not have."""


def test_every_field_has_a_value_of_its_own() -> None:
    """One that is everywhere as it is by default could be lost and nobody would see it."""
    for parts in (EPISODES, *zip(*((job.spec, job.observed, job.decision) for job in JOBS), strict=True)):
        for each in fields(parts[0]):
            is_set = any(getattr(part, each.name) != each.default for part in parts)
            is_later = each.name in _LATER or (type(parts[0]), each.name) == (Observed, "ended_at")
            assert is_set is not is_later, each.name


def test_notices_of_the_version_before_are_sudden() -> None:
    """They were acted on at once, and still are."""
    assert {value.notice_class for value in EPISODES} == {NoticeClass.SUDDEN}
