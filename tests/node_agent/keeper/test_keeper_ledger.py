"""The room of tenants and of the host, and what takes it."""

import pytest

from node_agent.keeper.ledger import Bounds, ExpiredPart, Ledger, Part, StateKey, Tenant
from node_agent.keeper.refusals import RefusalCode, RequestRefusedError

PAGE = 4096
A, B = Tenant("a"), Tenant("b")


def part(tenant: Tenant = A, state: str = "s", number: int = 0, length: int = PAGE, until: float = 10.0) -> Part:
    return Part(tenant=tenant, state=StateKey(state), number=number, length=length, until=until)


def ledger(host: int = 4, tenant: int = 3) -> Ledger:
    return Ledger(Bounds(host=host * PAGE, tenant=tenant * PAGE))


def kept(of: Ledger, one: Part) -> Part | None:
    return of.commit(of.reserve(one))


@pytest.mark.parametrize(("length", "room"), [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_a_part_takes_whole_pages_and_at_least_one(length: int, room: int) -> None:
    assert part(length=length).room == room * PAGE


def test_room_is_what_both_bounds_leave() -> None:
    """A tenant has no more than its bound, and all tenants together no more than the host's."""
    taken = ledger()
    assert taken.room(A) == 3 * PAGE
    kept(taken, part(A, "a", length=2 * PAGE))
    assert (taken.room(A), taken.room(B)) == (PAGE, 2 * PAGE)
    with pytest.raises(RequestRefusedError) as refused:
        taken.reserve(part(A, "a", 1, 2 * PAGE))
    assert (refused.value.code, refused.value.free) == (RefusalCode.NO_ROOM, PAGE)


def test_a_part_that_is_received_takes_its_room_before_it_is_whole() -> None:
    taken = ledger()
    draft = taken.reserve(part(length=3 * PAGE))
    assert taken.room(A) == 0
    assert taken.part(StateKey("s"), 0, 0.0) is None
    taken.abandon(draft)
    assert (taken.room(A), taken.states) == (0, 0)  # Its memory is not free yet.
    taken.release(draft.part)
    assert (taken.room(A), taken.taken) == (3 * PAGE, 0)


def test_a_part_that_replaces_another_needs_room_beside_it() -> None:
    taken = ledger(tenant=2)
    first = part()
    kept(taken, first)
    second = part(until=20.0)
    assert kept(taken, second) is first
    assert (taken.room(A), taken.part(StateKey("s"), 0, 15.0)) == (0, second)
    taken.release(first)
    assert taken.room(A) == PAGE


def test_a_state_belongs_to_the_tenant_that_sent_its_first_part() -> None:
    """Also while that part is being received. When nothing of it is left, its name is free."""
    taken = ledger()
    draft = taken.reserve(part(A))
    with pytest.raises(RequestRefusedError) as refused:
        taken.reserve(part(B, number=1))
    assert refused.value.code is RefusalCode.FOREIGN_STATE
    taken.abandon(draft)
    kept(taken, part(B, number=1))


def test_parts_expire_one_by_one() -> None:
    taken = ledger()
    early, late = part(until=10.0), part(number=1, until=20.0)
    kept(taken, early)
    kept(taken, late)
    assert taken.part(StateKey("s"), 0, 10.0) is None, "it expired, whether or not somebody has swept"
    assert taken.expire(9.9) == ()
    assert taken.expire(10.0) == (ExpiredPart(early, was_read=False),)
    assert taken.expire(20.0) == (ExpiredPart(late, was_read=False),)
    assert taken.states == 0


def test_a_part_of_a_state_that_was_deleted_meanwhile_is_not_kept() -> None:
    """Also where a new state of that name has begun since."""
    taken = ledger()
    old = taken.reserve(part())
    assert taken.delete(StateKey("s")) == ()
    kept(taken, part(number=1))
    with pytest.raises(RequestRefusedError) as refused:
        taken.check_expected(old)
    assert refused.value.code is RefusalCode.DELETED
    taken.abandon(old)
    assert taken.states == 1


def test_the_number_of_parts_is_bounded() -> None:
    """However small they are: each costs memory that no bound in bytes counts."""
    taken = Ledger(Bounds(host=2**40, tenant=2**40))
    for number in range(8192):
        kept(taken, part(number=number, length=0))
    with pytest.raises(RequestRefusedError) as refused:
        taken.reserve(part(number=8192, length=0))
    assert refused.value.code is RefusalCode.TOO_MANY
    for tenant in range(3):
        for number in range(8192):
            kept(taken, part(Tenant(f"t{tenant}"), f"t{tenant}", number, 0))
    with pytest.raises(RequestRefusedError) as refused:
        taken.reserve(part(B, "b", length=0))
    assert refused.value.code is RefusalCode.TOO_MANY


def test_a_part_is_read_until_another_one_replaces_it() -> None:
    taken = ledger()
    read, replaced, unread = part(number=0), part(number=1), part(number=2)
    for each in (read, replaced, unread):
        taken.commit(taken.reserve(each))
    taken.note_read(read)
    taken.note_read(replaced)
    taken.release(replaced)
    newer = part(number=1)
    taken.commit(taken.reserve(newer))
    assert {each.part.number: each.was_read for each in taken.expire(10.0)} == {0: True, 1: False, 2: False}
    taken.note_read(read)
