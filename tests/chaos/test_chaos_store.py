"""The store's disk fails under a supervisor that serves: nothing is confirmed or decided that is not durable."""

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.wiring.startup import STORE_FILE
from tests.chaos.chaos_service import ServiceLife, life, status
from tests.job_supervisor.cli.cli_running import run_process
from tests.testkit.serving import PeerRefusal, durable, noticed
from tests.testkit.waiting import until


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, timeout=10)  # noqa: S607 - wherever it is


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own, which may be filled and made read-only."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    directory = tmp_path / "data"
    directory.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(directory))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine mounts nothing: {error}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True, timeout=10)  # noqa: S607 - as above


def full(one: ServiceLife) -> AbstractContextManager[None]:
    return filled(one.directory)


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    filler = directory / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield
    filler.unlink()


async def test_a_full_disk_holds_everything_up_and_loses_nothing(disk: Path) -> None:
    """Reports wait or are refused, streams stay, nothing is decided on what is not durable; and then all happens."""
    async with life(disk, window_seconds=0) as one, one.peers() as peers:
        for node in ("n1", "n3"):
            await peers.agent(node)
        launcher, _ = await peers.running("job", ["n1"], min_workers=1)
        doomed = await peers.agent("n2")
        before = await status(peers)
        with full(one):
            await doomed.say(notice=noticed("n2"))
            assert await launcher.says(restarts=1) == PeerRefusal(503, "not_serving")
            await launcher.lines.before_heartbeat()
            during = await status(peers)
            assert [durable(job) for job in during["jobs"]] == [durable(job) for job in before["jobs"]]
            assert during["notices"] == []
            said = await run_process("status", "--data-dir", disk)
            (row,) = [line for line in said.out.splitlines() if line.startswith("node/n2")]
            assert "(not stored yet)" in row
            shown = (await run_process("status", "--data-dir", disk, "-o", "json")).json
            assert [notice["subject"] for notice in shown["unconfirmed"]] == ["n2"]
        await launcher.reports(restarts=1)
        await doomed.acknowledged(1)
        assert one.process.poll() is None


@pytest.mark.parametrize("known", [True, False])
async def test_a_disk_that_is_full_at_the_start_is_said_in_a_sentence(disk: Path, known: bool) -> None:  # noqa: FBT001
    """Whatever cannot be written first: one sentence, and a start that works once there is room."""
    if known:
        async with life(disk) as one, one.peers() as peers:
            await peers.agent("n1")
        (disk / ENDPOINTS_FILE).unlink()
    with filled(disk):
        async with life(disk) as refused:
            assert refused.process.poll() == 1
            assert "Traceback" not in refused.said()
            (said,) = [line for line in refused.said().splitlines() if line.startswith("elastic-job-supervisor: ")]
            assert "No space left on device" in said or "disk is full" in said
    async with life(disk) as mended, mended.peers() as peers:
        await peers.agent("n1")


async def test_a_decision_that_is_not_durable_is_not_carried_out(disk: Path) -> None:
    """The notice is durable and the disk is full before the window ends: nobody hears of it until the disk has room."""
    async with life(disk, window_seconds=3.0) as one, one.peers() as peers:
        agents = await peers.agents(["n1", "n2"])
        launcher, _ = await peers.running("job", ["n1", "n2"], min_workers=1)
        await launcher.lines.before_heartbeat()
        await agents["n2"].notices("n2")
        with full(one):
            await until(lambda: "dependency.failing" in one.said())
            # Tried again every 0.2 s, for as long as two heartbeats take.
            said = [*await launcher.lines.before_heartbeat(), *await launcher.lines.before_heartbeat()]
            assert all(not line.get("exclusions") for line in said)
            assert one.said().count("dependency.failing") == 1
        changed = await launcher.lines.matching(exclusions=["n2"])
        assert changed["workers"] == 1
        await until(lambda: "dependency.recovered" in one.said())


async def test_a_store_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    """A damaged file: a sentence, exit code 1, and not a byte is changed."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    async with life(directory) as one, one.peers() as peers:
        agent = await peers.agent("n1")
        await agent.notices("n1")
    store = directory / STORE_FILE
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    good = store.read_bytes()
    for bad in (b"garbage" * 1000, good[: len(good) // 2] + bytes(len(good) // 2), b"x" * 50):
        store.write_bytes(bad)
        async with life(directory) as broken:
            assert broken.process.poll() == 1
            assert "cannot open the store" in broken.said()
            assert "Traceback" not in broken.said()
        assert store.read_bytes() == bad
    store.write_bytes(good)
    async with life(directory) as mended, mended.peers() as peers:
        assert [one["subject"] for one in (await status(peers))["notices"]] == ["n1"]


async def test_a_file_that_somebody_else_holds_is_not_fought_over(tmp_path: Path) -> None:
    """Another process has the file: this one ends with a sentence, and starts once it is free."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    async with life(directory):
        pass
    holder = sqlite3.connect(directory / STORE_FILE, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        async with life(directory) as refused:
            assert refused.process.poll() == 1
            assert "already served by another supervisor" in refused.said()
        assert time.monotonic() - begun < 30
    finally:
        holder.close()
    async with life(directory) as free, free.peers() as peers:
        await peers.agent("n1")


async def test_a_read_only_file_system_is_said_in_a_sentence(disk: Path) -> None:
    """It cannot serve without a store that it can write; once it can, what was known is known."""
    async with life(disk) as one, one.peers() as peers:
        agent = await peers.agent("n1")
        await agent.notices("n1")
    (disk / ENDPOINTS_FILE).unlink()
    _mount("-o", "remount,size=1m,ro", str(disk))
    try:
        async with life(disk) as refused:
            assert refused.process.poll() == 1
            assert f"cannot open the store {disk / STORE_FILE}: its file system is read-only" in refused.said()
            assert "Traceback" not in refused.said()
    finally:
        _mount("-o", "remount,size=1m,rw", str(disk))
    async with life(disk) as mended, mended.peers() as peers:
        assert [one["subject"] for one in (await status(peers))["notices"]] == ["n1"]
