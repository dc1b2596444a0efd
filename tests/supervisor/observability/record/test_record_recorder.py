"""The recorder never loses an entry in silence, and its HTTP call answers with pages."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from supervisor.domain.capacity import UNKNOWN_MACHINE
from supervisor.observability.history import HistoryEntry, JobHistory
from supervisor.observability.journal import JobChanged
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.stays import StayBook
from supervisor.observability.record import recorder as module
from supervisor.observability.record.database import HistoryQuery, RecordDatabase, RecordError, file_url
from supervisor.observability.record.recorder import Recorder, RecordLimits
from tests.supervisor.decide.decide_builders import T0, running_job
from tests.testkit.clocks import HandClock
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import PATIENCE, until

_NODES = ["n1", "n2", "n3"]


def _recorder(
    path: Path,
    history: JobHistory | None = None,
    book: LedgerBook | None = None,
    fault: Fault | None = None,
    clock: Clock | None = None,
    **limits: Any,
) -> Recorder:
    clock = clock or Clock()
    return Recorder(
        url=lambda: file_url(path),
        limits=RecordLimits(**{"days": 1e6, "entries": 1000, **limits}),
        history=history or JobHistory(clock.now()),
        book=book or LedgerBook(clock),
        stays=StayBook(clock),
        noticed=lambda _job: {},
        machine=lambda _node: UNKNOWN_MACHINE,
        leader="one",
        fault=fault or Fault("record", clock),
        clock=clock,
        bulkhead=Bulkhead(clock),
    )


@asynccontextmanager
async def _running(recorder: Recorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _kept(path: Path) -> list[HistoryEntry]:
    database = RecordDatabase.open(file_url(path))
    entries = list(database.read(HistoryQuery(limit=1000)).entries)
    database.close()
    return entries


def _told(number: int) -> JobChanged:
    before = running_job()
    after = replace(before, decision=replace(before.decision, reason=f"Because of {number}."))
    return JobChanged(before, after, T0 + number)


async def test_what_happens_is_written_and_the_rest_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite"
    recorder = _recorder(path)
    async with _running(recorder):
        recorder.on_change(_told(1))

        async def written() -> bool:
            return len(_kept(path)) == 2

        await until(written, "both entries are written")
        for number in range(2, 5):
            recorder.on_change(_told(number))
    told = [entry.text for entry in _kept(path)]
    assert told[:4] == [f"Because of {number}." for number in range(1, 5)]
    assert told[4].startswith("Supervisor one began to lead")


async def test_a_database_that_cannot_be_had_costs_nothing_until_too_much_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was dropped is counted in the record, and the fault is logged once."""
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    path = tmp_path / "later" / "record.sqlite"
    recorder = _recorder(path)
    with capture_logs() as logs:
        for number in range(5):
            recorder.on_change(_told(number))
            with pytest.raises(RecordError):
                await recorder.once()
        with pytest.raises(RecordError, match="unable to open"):
            await recorder.read(HistoryQuery(limit=1))
        path.parent.mkdir()
        async with _running(recorder):

            async def written() -> bool:
                return any(entry.what == "Gap" for entry in _kept(path))

            await until(written, "the gap is told")
    assert [entry.text for entry in _kept(path) if entry.what == "Gap"] == [
        "Entries that could not be written and are missing: 3."
    ]
    assert [entry.text for entry in _kept(path)][:2] == ["Because of 0.", "Because of 1."]
    assert [each["event"] for each in logs if each["log_level"] == "error"] == []


def _move_aside(path: Path) -> None:
    aside = path.with_name("newer")
    aside.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        file.rename(aside / file.name)


async def test_a_file_of_a_newer_version_can_be_moved_aside_while_the_supervisor_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the guide tells people to do after a rollback. Nothing of what happened meanwhile is missing."""
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "_MAX_PAUSE", 0.02)
    path, fault = tmp_path / "record.sqlite", Fault("record", Clock())
    with monkeypatch.context() as newer:
        newer.setattr("supervisor.observability.record.database._VERSION", 3)
        RecordDatabase.open(file_url(path)).close()
    recorder = _recorder(path, fault=fault)
    async with _running(recorder):
        recorder.on_change(_told(1))
        await until(lambda: fault.reason is not None, "it has failed")
        assert str(fault.reason).startswith("its version 3 is newer than this supervisor")
        _move_aside(path)
        await until(lambda: fault.reason is None, "it goes on")
    assert _kept(path)[0].text == "Because of 1."


async def test_an_entry_that_cannot_be_written_spoils_no_other(tmp_path: Path) -> None:
    """Such as one with half a surrogate pair, of whatever a peer has said."""
    path = tmp_path / "record.sqlite"
    recorder = _recorder(path)
    recorder.on_change(_told(1))
    before = running_job()
    after = replace(before, decision=replace(before.decision, reason="half a pair: \ud800"))
    recorder.on_change(JobChanged(before, after, T0 + 2))
    recorder.on_change(_told(3))
    async with _running(recorder):

        async def told() -> bool:
            return any(entry.what == "Gap" for entry in _kept(path))

        await until(told, "the gap is told")
    assert [entry.text for entry in _kept(path)][:2] == ["Because of 1.", "Because of 3."]
    assert [entry.text for entry in _kept(path) if entry.what == "Gap"] == [
        "Entries that could not be written and are missing: 1."
    ]


async def test_the_ledger_is_written_at_once_and_at_the_end(tmp_path: Path) -> None:
    """What was counted since the last minute is not lost with the supervisor."""
    path, book = tmp_path / "record.sqlite", LedgerBook(Clock())
    book.begin([running_job()])
    recorder = _recorder(path, book=book)

    def written() -> float:
        database = RecordDatabase.open(file_url(path))
        hours = database.read_hours(0.0, float("inf"))
        database.close()
        return sum(hours.get(running_job().name, {}).values())

    async with _running(recorder):
        first = await until(written, "the first hours are written")
    assert written() > first


async def test_what_happens_while_the_ledger_is_written_does_not_wait_for_the_next_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = _recorder(tmp_path / "record.sqlite", clock=HandClock())
    write = RecordDatabase.write_hours

    def meanwhile(*given: Any) -> None:
        recorder.on_change(_told(1))
        write(*given)

    monkeypatch.setattr(RecordDatabase, "write_hours", meanwhile)
    assert await recorder.once() == module._BATCH_SECONDS
    async with _running(recorder):
        pass


async def test_the_pools_of_a_month_are_counted_before_anybody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks waits for the hours that are not settled yet alone."""
    path, now = tmp_path / "record.sqlite", Clock().now()
    database = RecordDatabase.open(file_url(path))
    database.append(
        HistoryEntry(
            at=now - days * 86_400, subject="node/n1", what="noticed", text="", source="aws", concerns=("pool/a/b/c",)
        )
        for days in (0, 5, 5, 40)
    )
    database.close()
    asked, read = list[float](), RecordDatabase.read_pool_entries

    def reads(database: RecordDatabase, since: float, until: float) -> Sequence[tuple[float, str, str]]:
        asked.append(since)
        return read(database, since, until)

    monkeypatch.setattr(RecordDatabase, "read_pool_entries", reads)
    recorder = _recorder(path)
    async with _running(recorder):
        last = (now - 3 * 3600.0) // 86_400 * 86_400
        await until(lambda: bool(asked) and max(asked) >= last, "the hours that are over are counted")
        ahead = len(asked)
        counts = await recorder.read_pool_counts()
    assert sorted(counts.values()) == [1, 2]
    assert asked[ahead:]
    assert min(asked[ahead:]) >= now - 3 * 3600.0


async def test_what_is_written_after_its_day_was_counted_is_counted_too(tmp_path: Path) -> None:
    """Entries wait while the database is away, longer than it takes until their hour counts as settled."""
    recorder, now = _recorder(tmp_path / "record.sqlite"), Clock().now()
    reclaim = HistoryEntry(
        at=now - 5 * 86_400, subject="node/n1", what="noticed", text="", source="aws", concerns=("pool/a/b/c",)
    )
    async with _running(recorder):
        recorder.add(reclaim)
        assert sum((await recorder.read_pool_counts()).values()) == 1
        recorder.add(replace(reclaim, subject="node/n2"))
        recorder.add(replace(reclaim, subject="node/n3", at=now - 86_400))
        counts = await recorder.read_pool_counts()
    assert sorted(counts.values()) == [1, 2]


async def test_a_reader_sees_what_came_while_a_batch_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on, append = Event(), Event(), RecordDatabase.append

    def waits(database: RecordDatabase, entries: Iterable[HistoryEntry]) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE)
        append(database, entries)

    monkeypatch.setattr(RecordDatabase, "append", waits)
    recorder = _recorder(tmp_path / "record.sqlite")
    async with _running(recorder):
        await asyncio.to_thread(begun.wait, PATIENCE)
        recorder.add(HistoryEntry(at=1.0, subject="job/a", what="asked for", text=""))
        reading = asyncio.create_task(recorder.read(HistoryQuery(limit=10)))
        await asyncio.sleep(0)
        goes_on.set()
        assert {entry.what for entry in (await reading).entries} == {"Began", "asked for"}


async def test_changes_of_one_second_are_one_transaction_and_a_reader_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_SECONDS", 600.0)
    batches, append = list[int](), RecordDatabase.append

    def counted(database: RecordDatabase, entries: Iterable[HistoryEntry]) -> None:
        added = list(entries)
        batches.append(len(added))
        append(database, added)

    monkeypatch.setattr(RecordDatabase, "append", counted)
    recorder = _recorder(tmp_path / "record.sqlite")
    async with _running(recorder):

        async def written() -> bool:
            return bool(batches) and not recorder._is_failing

        await until(written, "the first entry is written")
        for number in range(20):
            recorder.on_change(_told(number))
            await asyncio.sleep(0)
        await recorder._in_thread(lambda: None)  # What the thread had to do before is done.
        assert batches == [1]
        page = await recorder.read(HistoryQuery(limit=100))
        assert (len(page.entries), batches) == (21, [1, 20])
        for number in range(module._MAX_BATCH):
            recorder.on_change(_told(number))

        async def full() -> bool:
            return sum(batches) == 21 + module._MAX_BATCH

        await until(full, "a full batch does not wait")


async def test_what_is_dropped_while_a_batch_is_written_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    path = tmp_path / "record.sqlite"
    recorder = _recorder(path)
    append = RecordDatabase.append

    def meanwhile(database: RecordDatabase, entries: Iterable[HistoryEntry]) -> None:
        if not recorder._lost:
            for number in range(4):  # Two of them, as one entry waits already.
                recorder.on_change(_told(number))
        append(database, entries)

    monkeypatch.setattr(RecordDatabase, "append", meanwhile)
    await recorder.once()
    monkeypatch.setattr(RecordDatabase, "append", append)
    async with _running(recorder):

        async def told() -> bool:
            return any(entry.what == "Gap" for entry in _kept(path))

        await until(told, "the gap is told")
    assert [entry.text for entry in _kept(path) if entry.what == "Gap"] == [
        "Entries that could not be written and are missing: 2."
    ]


async def test_a_new_leader_begins_with_what_the_record_has(tmp_path: Path) -> None:
    path, job = tmp_path / "record.sqlite", running_job()
    first = _recorder(path)
    first.on_change(_told(1))
    await first.once()
    async with _running(first):
        pass
    history = JobHistory(T0 + 9e9)
    second = _recorder(path, history)
    await second.once()
    assert [entry.text for entry in history.of(job.name)] == ["Because of 1."]
    assert history.since == T0 + 1
    async with _running(second):
        pass


async def test_the_first_reader_opens_the_record_and_sees_what_has_just_happened(tmp_path: Path) -> None:
    """Whether the recorder has begun to write or not; what earlier leaders wrote is read once."""
    path, job = tmp_path / "record.sqlite", running_job()
    first = _recorder(path)
    first.on_change(_told(1))
    await first.once()
    async with _running(first):
        pass
    history = JobHistory(T0 + 9e9)
    second = _recorder(path, history)
    second.on_change(_told(2))

    async def told() -> list[str]:
        page = await second.read(HistoryQuery(subject=f"job/{job.name}", limit=10))
        return [entry.text for entry in page.entries]

    *seen, _ = await asyncio.gather(told(), told(), second.once())
    assert seen == [["Because of 1.", "Because of 2."]] * 2
    assert [entry.text for entry in history.of(job.name)] == ["Because of 1."]
    async with _running(second):
        pass


async def test_no_more_is_kept_than_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "record.sqlite"
    recorder = _recorder(path, entries=2)
    for number in range(5):
        recorder.on_change(_told(number))
    async with _running(recorder):

        async def pruned() -> bool:
            return len(_kept(path)) == 2

        await until(pruned, "the earliest are deleted")


async def test_the_supervisor_answers_with_pages_of_its_record(tmp_path: Path) -> None:
    """Also of the time before it began, and of a job that is not stored any more."""
    async with serving(tmp_path) as served:
        await _reclaim(served)
        await until(lambda: _has(served, "Suspended", job="train"), "the record has the suspension")
    async with serving(tmp_path) as served:
        await until(lambda: _has(served, "Suspended", job="train"), "the next supervisor shows it")
        whole = await _asked(served, job="train")
        whats = [entry["what"] for entry in whole["entries"]]
        assert whats.index("noticed") < whats.index("Stopping") < whats.index("Checkpoint") < whats.index("Suspended")
        assert [entry["at"] for entry in whole["entries"]] == sorted(entry["at"] for entry in whole["entries"])
        assert whole["since"] <= whole["entries"][0]["at"]
        pages, query = list[Any](), {"limit": "2"}
        while True:
            page = await _asked(served, job="train", **query)
            pages = page["entries"] + pages
            if not page["cut"]:
                break
            query["before"] = page["next"]
        assert pages == whole["entries"]
        [noticed] = (await _asked(served, source="metadata"))["entries"]
        assert (noticed["subject"], noticed["what"], noticed["source"]) == ("node/n2", "noticed", "metadata")
        assert (await _asked(served, job="nobody"))["entries"] == []


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "many"},
        {"since": "nan"},
        {"until": "yesterday"},
        {"before": "x"},
        {"job": "a", "node": "b"},
        {"job": "a", "pool": "b"},
        {"jobs": "a"},
    ],
)
async def test_a_query_that_is_none_is_refused(served: Served, query: dict[str, str]) -> None:
    assert (await _asked(served, **query))["error"] == "malformed"


async def _reclaim(served: Served) -> None:
    agents = await served.peers.agents(_NODES)
    _, order = await served.peers.running("train", _NODES)
    process = await served.peers.process(order["token"], "n1", rank=0)
    await agents["n2"].notices("n2", left=60.0)
    stop = await process.lines.matching(directive="STOP")
    await process.reports("saved", stop, step=17)


async def _has(served: Served, what: str, **query: str) -> bool:
    answer = await _asked(served, **query)
    return any(entry["what"] == what for entry in answer.get("entries", ()))


async def _asked(served: Served, **query: str) -> Any:
    headers = {"Authorization": f"Bearer {served.peers.tokens.viewer()}"}
    async with served.peers.session.get(served.peers.http + "/v1/history", headers=headers, params=query) as answer:
        return await answer.json()
