"""The loops of tests take no harm from what an earlier test left behind."""

import asyncio

import pytest

from tests.testkit.loops import AsyncioPolicy, UvloopPolicy


@pytest.mark.parametrize("policy", [AsyncioPolicy(), UvloopPolicy()], ids=["asyncio", "uvloop"])
def test_a_closed_loop_drops_a_late_completion_and_an_open_one_runs_it(policy: AsyncioPolicy | UvloopPolicy) -> None:
    ran: list[str] = []
    loop = policy.new_event_loop()
    loop.call_soon_threadsafe(ran.append, "open")
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert loop.call_soon_threadsafe(ran.append, "closed").cancelled()
    assert ran == ["open"]
