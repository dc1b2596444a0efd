"""One of several candidates leads, and the lease changes hands."""

import asyncio
import time
from datetime import datetime

import pytest

from servicekit.kubernetes.election import RENEWALS
from tests.controlplane.leader.leader_candidates import LONG, SECONDS, Candidate, Hall
from tests.testkit.controlplane.outages import frozen
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

SHORT = 3 * SECONDS
"""In seconds: with the least there is, a holder that renews late on a busy machine would spoil the test."""


async def first_and_second(hall: Hall, seconds: int = SHORT) -> tuple[Candidate, Candidate]:
    first = await hall.runs("first", seconds)
    await first.gained()
    return first, await hall.runs("second", seconds)


async def renewals(hall: Hall, count: int) -> None:
    for _ in range(count):
        before = (await hall.lease())["renewTime"]

        async def renewed(before: str = before) -> bool:
            return bool((await hall.lease())["renewTime"] != before)

        await until(renewed, "the lease to be renewed")


async def test_one_leads_and_the_others_wait(hall: Hall) -> None:
    first, second = await first_and_second(hall)
    await renewals(hall, 3 * RENEWALS)
    assert first.leads
    assert not second.leads
    spec = await hall.lease()
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("first", SHORT, 0)


async def test_of_many_who_come_at_once_one_leads(hall: Hall) -> None:
    candidates = await asyncio.gather(*(hall.runs(f"one{number}", SHORT) for number in range(5)))
    await until(lambda: any(one.leads for one in candidates))
    await renewals(hall, RENEWALS)
    assert sum(one.leads for one in candidates) == 1


@pytest.mark.brief
async def test_a_lease_that_is_let_go_is_taken_at_once(hall: Hall) -> None:
    first, second = await first_and_second(hall, LONG)
    begun = time.monotonic()
    await first.stop()
    assert not first.leads
    assert await second.gained() == 2
    print(f"\ntaken over after a polite stop in {time.monotonic() - begun:.3f} s")  # noqa: T201 - the figure
    assert time.monotonic() - begun < LONG / 2


@pytest.mark.brief
async def test_a_dead_holders_lease_is_taken_when_its_time_is_over_for_certain(hall: Hall) -> None:
    """A whole duration after its last sign of life was seen, and by then it knows itself that it may not act."""
    first, second = await first_and_second(hall)
    await renewals(hall, 1)
    begun = time.monotonic()
    await first.die()
    last = await hall.lease()
    assert await second.gained() == 2
    assert not first.leads, "the new leader was there before the old one knew that its time was over"
    print(f"\ntaken over {time.monotonic() - begun:.3f} s after a kill, with a lease of {SHORT} s")  # noqa: T201 - the figure
    # Both were written by this machine's clock, before the requests were sent: no delay makes the pause shorter.
    assert last["holderIdentity"] == "first"
    assert _instant((await hall.lease())["acquireTime"]) - _instant(last["renewTime"]) > SHORT - 0.01


def _instant(written: str) -> float:
    return datetime.fromisoformat(written).timestamp()


@pytest.mark.parametrize("written", ["1999-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_no_other_machines_clock_counts(hall: Hall, written: str) -> None:
    """A holder's renewal was long ago, or is still to come: it has its whole duration from when it was first seen."""
    await hall.put(holderIdentity="ghost", leaseDurationSeconds=2, leaseTransitions=6, renewTime=written)
    begun = time.monotonic()
    candidate = await hall.runs("one")
    assert await candidate.gained() == 8
    assert time.monotonic() - begun > 2


async def test_a_lease_that_a_person_deletes_stays_its_holders(hall: Hall) -> None:
    """It is made again at once, with the same epoch: nobody else can have led meanwhile."""
    first, second = await first_and_second(hall)
    for _ in range(3):
        await hall.api.delete(hall.path)
        await until(hall.lease, "the lease to be there again")
        await renewals(hall, 1)
        assert (first.leads, second.leads) == (True, False)
    assert (await hall.lease())["holderIdentity"] == "first"


async def test_an_epoch_is_above_all_that_was_written_also_without_a_lease(hall: Hall) -> None:
    """Somebody deleted it while nobody led: what is stored says how far it had come."""
    hall.highest = 41
    candidate = await hall.runs("one")
    assert await candidate.gained() == 42
    assert (await hall.lease())["leaseTransitions"] == 41


async def test_who_sees_another_holder_leads_no_more(hall: Hall) -> None:
    first = await hall.runs("first")
    await first.gained()
    await hall.api.patch(hall.path, {"spec": {"holderIdentity": "usurper", "leaseTransitions": 7}})
    assert "usurper holds the lease" in str(await first.lost())
    assert not first.leads


async def test_a_person_who_labels_the_lease_changes_nothing(hall: Hall) -> None:
    first, second = await first_and_second(hall)
    for number in range(5):
        await hall.api.patch(hall.path, {"metadata": {"labels": {"seen": str(number)}}})
        await renewals(hall, 1)
    assert (first.leads, second.leads) == (True, False)


@pytest.mark.brief
async def test_a_silent_api_server_changes_nothing(hall: Hall) -> None:
    """The holder does not know any more whether it leads, and nobody else can; afterwards it is the holder again."""
    first, second = await first_and_second(hall)
    with frozen(hall.place.plane):
        await until(lambda: not first.leads)
        for _ in range(10):
            assert not first.leads
            assert not second.leads
            await asyncio.sleep(SHORT / 5)
    await until(lambda: first.leads or second.leads)
    await renewals(hall, 2 * RENEWALS)
    assert (first.leads, second.leads) == (True, False)
