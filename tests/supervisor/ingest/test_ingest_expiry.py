"""Notices and agents expire with time, unless something keeps them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.decide.notices import Presence, ends_at
from supervisor.domain.ids import Host
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.ingest import expiry
from supervisor.ingest.agent_registry import AgentRegistry, AgentState, UnconfirmedNotices
from supervisor.ingest.expiry import Expiry
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import POLICY, T0, notice

NODE, STREAM = Host("n1"), object()
LEAD = 100.0


class SetClock(Clock):
    seconds = T0

    def now(self) -> float:
        return self.seconds


@dataclass(slots=True)
class Scene:
    """A supervisor's store, with one notice, and what it knows of the node's agent."""

    store: SqliteStore
    clock: SetClock = field(default_factory=SetClock)
    agents: AgentRegistry = field(init=False)
    unconfirmed: UnconfirmedNotices = field(init=False)
    ageing: Expiry = field(init=False)

    def __post_init__(self) -> None:
        self.agents = AgentRegistry(lambda: None, self.clock.now)
        self.unconfirmed = UnconfirmedNotices(lambda: None, self.clock)
        parts = (self.store, self.agents, lambda _notice: None, POLICY, self.clock)
        self.ageing = Expiry(*parts, bulkhead=Bulkhead(Clock()), unconfirmed=self.unconfirmed)

    async def state(self) -> NoticeState:
        await self.ageing.once()
        (known,) = self.store.snapshot().notices.values()
        return known.state


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Whose clock is so far ahead that the notice seems to have passed long ago."""
    store = await SqliteStore.open(tmp_path / "store")
    running = asyncio.create_task(store.run())
    known = notice(1, left=LEAD)
    await store.put_notice(known.id, lambda _known: known)
    one = Scene(store)
    one.clock.seconds = T0 + LEAD + 2 * POLICY.expire_seconds
    yield one
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await store.close()


async def test_a_hello_is_waited_for(scene: Scene) -> None:
    """An agent that is just connecting may announce it anew; after its hello it has a moment for its first polls."""
    scene.agents.connect(AgentState(node=NODE, uid="uid-1", session=1, connected=True), STREAM)
    assert await scene.state() is NoticeState.ACTIVE
    scene.clock.seconds += 1000
    assert await scene.state() is NoticeState.ACTIVE
    scene.agents.mark_synced(NODE, STREAM)
    scene.clock.seconds += POLICY.gone_grace_seconds - 0.1
    assert await scene.state() is NoticeState.ACTIVE
    scene.clock.seconds += 0.1
    assert await scene.state() is NoticeState.EXPIRED


async def test_another_stream_has_heard_nothing(scene: Scene) -> None:
    """The hello that counts is the one of the stream that speaks now."""
    view = AgentState(node=NODE, uid="uid-1", session=1, connected=True)
    scene.agents.connect(view, STREAM)
    scene.agents.mark_synced(NODE, STREAM)
    scene.agents.connect(view, "again")
    scene.agents.mark_synced(NODE, STREAM)
    scene.clock.seconds += 1000
    assert await scene.state() is NoticeState.ACTIVE


@pytest.mark.parametrize("waits", [True, False])
async def test_what_waits_to_be_stored_does_not_end(scene: Scene, waits: bool) -> None:  # noqa: FBT001 - pytest names it
    """It is announced again, and the store could not take that in yet."""
    scene.agents.connect(AgentState(node=NODE, uid="uid-1", session=1, connected=True), STREAM)
    scene.agents.mark_synced(NODE, STREAM)
    (known,) = scene.store.snapshot().notices.values()
    if waits:
        scene.unconfirmed.put(STREAM, known.id, known)
    scene.clock.seconds += 1000
    assert await scene.state() is (NoticeState.ACTIVE if waits else NoticeState.EXPIRED)


async def test_the_first_look_of_a_silent_node_is_no_silence(scene: Scene) -> None:
    """Agents need a moment to connect to a supervisor that has just begun."""
    scene.agents = AgentRegistry(lambda: None, scene.clock.now)
    scene.ageing = Expiry(
        scene.store, scene.agents, lambda _notice: None, POLICY, scene.clock, bulkhead=Bulkhead(Clock())
    )
    assert await scene.state() is NoticeState.ACTIVE
    scene.clock.seconds += POLICY.gone_grace_seconds
    assert await scene.state() is NoticeState.GONE


async def test_a_notice_that_cannot_be_ended_leaves_the_others_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again after the pause that the guard gives it."""
    bad = notice(2, left=LEAD)
    await scene.store.put_notice(bad.id, lambda _known: bad)

    def raises(known: ReclaimNotice, presence: Presence, *rest: Any) -> float:
        if known.id == bad.id:
            raise ZeroDivisionError("a defect")
        return ends_at(known, presence, *rest)

    monkeypatch.setattr(expiry, "ends_at", raises)
    pause = await scene.ageing.once()
    assert pause is not None
    assert pause <= 10
    states = {notice.id: notice.state for notice in scene.store.snapshot().notices.values()}
    assert states == {bad.id: NoticeState.ACTIVE, notice(1).id: NoticeState.GONE}
