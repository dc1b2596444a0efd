"""A local copy of a collection, fed by lists, a watch and the answers to its owner's own changes, in any order."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.objects import Metadata, ObjectKey, UnreadObject


@dataclass(frozen=True, slots=True)
class Thing:
    metadata: Metadata


def thing(version: int, *, name: str = "a", uid: str = "uid") -> Thing:
    return Thing(Metadata(name, uid, str(version)))


def versions(cache: Cache[Thing]) -> dict[str, int]:
    return {key.name: one.metadata.version for key, one in cache.objects.items()}


def empty() -> Cache[Thing]:
    """Listed once, at version 1."""
    cache: Cache[Thing] = Cache("things", lambda _before, _after: None, Bulkhead(Clock()))
    cache.replace([], "1")
    return cache


def test_an_own_change_is_not_undone_by_what_the_watch_still_has_to_tell() -> None:
    """The answer is faster than the watch, which tells of older states first."""
    cache = empty()
    cache.apply(thing(2))
    cache.record_write(thing(9))
    cache.apply(thing(5))
    assert versions(cache) == {"a": 9}
    cache.apply(thing(9))
    cache.apply(thing(12))
    assert versions(cache) == {"a": 12}


def outline(version: int, *, name: str = "a", uid: str = "uid") -> UnreadObject:
    return UnreadObject(Metadata(name, uid, str(version)), "size")


def unread(cache: Cache[Thing]) -> set[str]:
    return {key.name for key in cache.unread}


def test_an_object_whose_state_does_not_decode_stays_as_it_was() -> None:
    """From a list as from the watch, until it decodes again; one of another uid is another object."""
    cache = empty()
    cache.apply(thing(2))
    cache.apply_unread(outline(3))
    assert (versions(cache), unread(cache)) == ({"a": 2}, {"a"})
    cache.replace([thing(4, name="b")], "5", [outline(3), outline(5, name="c")])
    assert (versions(cache), unread(cache)) == ({"a": 2, "b": 4}, {"a", "c"})
    cache.record_write(thing(6))
    cache.apply_unread(outline(7, uid="another"))
    assert (versions(cache), unread(cache)) == ({"b": 4}, {"a", "c"})
    cache.apply_deletion(outline(8, name="c"))
    cache.apply_deletion(outline(9))
    assert unread(cache) == {"a"}
    cache.replace([], "10")
    assert (versions(cache), unread(cache)) == ({}, set())


def test_an_older_state_that_does_not_decode_is_no_news() -> None:
    cache = empty()
    cache.record_write(thing(9))
    cache.apply_unread(outline(5))
    cache.replace([], "8", [outline(5)])
    assert (versions(cache), unread(cache)) == ({"a": 9}, set())
    cache.record_deletion(thing(9))
    cache.apply_unread(outline(10))
    assert unread(cache) == set()


def test_what_was_deleted_here_does_not_come_back_by_the_watch() -> None:
    """It still tells of changes before the deletion; a new object of the name is another one."""
    cache = empty()
    cache.apply(thing(2))
    cache.record_deletion(thing(2))
    cache.apply(thing(3))
    assert versions(cache) == {}
    cache.apply_deletion(thing(4))
    cache.apply(thing(5, uid="another"))
    assert versions(cache) == {"a": 5}


def test_an_answer_that_comes_after_the_watch_told_of_the_deletion_is_old() -> None:
    cache = empty()
    cache.apply(thing(2))
    cache.apply_deletion(thing(4))
    cache.record_write(thing(3))
    assert versions(cache) == {}


def test_a_deletion_does_not_take_a_newer_object_of_the_name() -> None:
    """It was made here before the watch told of the end of the one before."""
    cache = empty()
    cache.apply(thing(2))
    cache.record_write(thing(6, uid="another"))
    cache.apply_deletion(thing(4))
    assert versions(cache) == {"a": 6}


def test_a_list_takes_away_what_is_not_in_it_and_leaves_what_is_newer() -> None:
    """A change that was made while the list was on its way is no part of it."""
    cache = empty()
    cache.apply(thing(2, name="gone", uid="gone"))
    cache.record_write(thing(9, name="new", uid="new"))
    cache.record_write(thing(8, name="changed", uid="changed"))
    cache.replace([thing(4, name="changed", uid="changed"), thing(5, name="theirs", uid="theirs")], "7")
    assert versions(cache) == {"new": 9, "changed": 8, "theirs": 5}
    assert cache.version == "7"


def test_a_list_from_before_an_own_deletion_does_not_bring_it_back() -> None:
    cache = empty()
    cache.apply(thing(2))
    cache.record_deletion(thing(2))
    cache.replace([thing(2)], "3")
    cache.apply(thing(4))
    assert versions(cache) == {}


def test_a_cluster_that_was_restored_from_a_backup_counts_as_it_is() -> None:
    cache = empty()
    cache.apply(thing(50))
    cache.apply(thing(60, name="lost", uid="lost"))
    cache.replace([thing(20)], "30")
    assert versions(cache) == {"a": 20}
    cache.apply(thing(31))
    assert versions(cache) == {"a": 31}


@dataclass
class Cluster:
    """The truth, and what of it is still on its way to the cache."""

    version: int = 1
    objects: dict[ObjectKey, Thing] = field(default_factory=dict)
    history: list[tuple[bool, Thing]] = field(default_factory=list)
    answers: list[tuple[bool, Thing]] = field(default_factory=list)
    uids: int = 0

    def change(self, name: str, *, delete: bool, own: bool) -> None:
        """One write, by the cache's owner or by somebody else; an own one is answered some time."""
        self.version += 1
        known = self.objects.get(ObjectKey("", name))
        if delete and known is not None:
            del self.objects[known.metadata.key]
            after = thing(self.version, name=name, uid=known.metadata.uid)
        elif not delete:
            self.uids += known is None
            after = thing(self.version, name=name, uid=known.metadata.uid if known else str(self.uids))
            self.objects[after.metadata.key] = after
        else:
            return
        self.history.append((delete, after))
        if own:
            self.answers.append((delete, after))


class Playing:
    """A cluster and a cache of it; `look` after each step."""

    def __init__(self, random: Random) -> None:
        self.cluster = Cluster()
        self.cache = empty()
        self._random = random
        self._told = 0
        self._highest: dict[str, int] = {}

    def watch(self) -> bool:
        if self._told == len(self.cluster.history):
            return False
        delete, one = self.cluster.history[self._told]
        self._told += 1
        self.cache.apply_deletion(one) if delete else self.cache.apply(one)
        return True

    def answer(self) -> bool:
        if not self.cluster.answers:
            return False
        delete, one = self.cluster.answers.pop(self._random.randrange(len(self.cluster.answers)))
        self.cache.record_deletion(one) if delete else self.cache.record_write(one)
        return True

    def list(self) -> None:
        self.cache.replace([*self.cluster.objects.values()], str(self.cluster.version))
        self._told = len(self.cluster.history)

    def look(self) -> None:
        for one in self.cache.objects.values():
            assert one.metadata.version >= self._highest.get(one.metadata.uid, 0)
            self._highest[one.metadata.uid] = one.metadata.version


CHANGE = st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans())


@given(st.lists(CHANGE | st.sampled_from(["watch", "answer", "list"]), max_size=40), st.randoms())
def test_whatever_the_order_it_ends_as_the_cluster_and_never_goes_back(
    steps: list[tuple[str, bool, bool] | str], random: Random
) -> None:
    """The watch is in order, answers come when they like, and a list may come at any time."""
    playing = Playing(random)
    for step in steps:
        if isinstance(step, tuple):
            playing.cluster.change(step[0], delete=step[1], own=step[2])
        else:
            {"watch": playing.watch, "answer": playing.answer, "list": playing.list}[step]()
        playing.look()
    while playing.watch() or playing.answer():
        playing.look()
    assert dict(playing.cache.objects) == playing.cluster.objects


def test_a_callback_that_raises_for_one_object_is_called_for_the_others() -> None:
    """Also within one list, and the cache has them all."""
    told, bulkhead = list[str](), Bulkhead(Clock())

    def on_change(_before: Thing | None, after: Thing | None) -> None:
        assert after is not None
        if after.metadata.name == "b":
            raise OverflowError("a defect")
        told.append(after.metadata.name)

    cache: Cache[Thing] = Cache("things", on_change, bulkhead)
    cache.replace([thing(2, name=name, uid=name) for name in "abc"], "2")
    assert told == ["a", "c"]
    assert versions(cache) == {"a": 2, "b": 2, "c": 2}
    assert bulkhead.counts == {"watch": 1}
