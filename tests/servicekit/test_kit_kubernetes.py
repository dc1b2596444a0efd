"""Following a collection of an API server that does what real ones do on bad days: a scripted one, on loopback."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import (
    ApiError,
    ApiUnavailableError,
    ConfigurationError,
    ConflictError,
    HistoryLostError,
    NotFoundError,
    RefusedError,
    UnreadableError,
)
from servicekit.kubernetes.follower import Follower
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from tests.testkit.waiting import PATIENCE, until

THINGS = Resource(group="kit.test", version="v1", kind="Thing", plural="things", namespaced=True, page=2)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata
    size: int = 0


def thing(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "space", "uid": name, "resourceVersion": str(version), "labels": {"a": "b"}}
    return {"kind": "Thing", "metadata": metadata, "spec": {"much": "more"}}


def page(version: int, *names: str, more: str = "") -> Answer:
    items = [thing(name, version) for name in names]
    return answered(200, {"metadata": {"resourceVersion": str(version), "continue": more}, "items": items})


def answered(status: int, body: Any, **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(
            body, status=status, headers={name.replace("_", "-"): headers[name] for name in headers}
        )

    return answer


def event(kind: str, shown: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": shown}).encode() + b"\n"


def watch(*lines: bytes, last: float = 0.6, cut: bool = False) -> Answer:
    """A watch that tells all that and ends in order `last` seconds later, or is cut."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        await asyncio.sleep(last)
        return response

    return answer


@dataclass
class Script:
    """Answers requests one by one, the last answer for ever; remembers what was asked."""

    answers: list[Answer]
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.headers.append(request.headers.get("Authorization", ""))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    @property
    def lists(self) -> int:
        return sum("watch" not in each for each in self.asked)


@dataclass
class Following:
    url: str
    script: Script
    server: ApiServer
    collection: ResourceClient[Thing]
    cache: Cache[Thing]
    reflector: Reflector[Thing]
    synced: asyncio.Event

    def shown(self) -> dict[str, int]:
        return {key.name: one.metadata.version for key, one in self.cache.objects.items()}

    async def until(self, shown: dict[str, int]) -> None:
        task = asyncio.create_task(self.reflector.run())
        try:
            await until(lambda: self.shown() == shown, lambda: f"{shown} in {self.shown()}")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def following(
    directory: Path, *answers: Answer, timeout_seconds: float = 2.0, cached: bool = False, optional: bool = False
) -> AsyncIterator[Following]:
    script = Script([*answers])
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", script.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server = await ApiServer.connect(kubeconfig(directory, port), timeout_seconds)
    collection = ResourceClient(server, THINGS, lambda data: msgspec.json.decode(data, type=Thing))
    cache: Cache[Thing] = Cache("things", lambda _before, _after: None, Bulkhead(Clock()))
    try:
        synced = asyncio.Event()
        reflector = Reflector(
            collection,
            cache,
            Clock(),
            watch_seconds=1,
            cached=cached,
            optional=optional,
            undefined_seconds=0.05,
            on_synced=synced.set,
        )
        yield Following(f"http://127.0.0.1:{port}", script, server, collection, cache, reflector, synced)
    finally:
        await server.close()
        await runner.cleanup()


def kubeconfig(directory: Path, port: int, host: str = "127.0.0.1") -> str:
    file = directory / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "home"}
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    file.write_text(json.dumps(content))
    return str(file)


async def test_a_list_comes_by_pages_and_is_seen_as_one(tmp_path: Path) -> None:
    async with following(tmp_path, page(7, "a", "b", more="token"), page(7, "c")) as one:
        await one.reflector.list()
        assert one.shown() == {"a": 7, "b": 7, "c": 7}
        assert one.script.asked == [{"limit": "2"}, {"limit": "2", "continue": "token"}]
        assert one.script.headers == ["Bearer secret", "Bearer secret"]
        assert one.server.namespace == "home"


async def test_a_list_that_breaks_off_shows_nothing_of_itself(tmp_path: Path) -> None:
    """Half of a list would look as if the other half had been deleted."""
    async with following(tmp_path, page(7, "a", more="token"), answered(503, {})) as one:
        with pytest.raises(ApiUnavailableError):
            await one.reflector.list()
        assert one.shown() == {}


async def test_a_list_whose_rest_has_expired_begins_again(tmp_path: Path) -> None:
    answers = [page(7, "a", more="token"), answered(410, {"message": "expired"}), page(9, "a", "b")]
    async with following(tmp_path, *answers) as one:
        await one.reflector.first()
        assert one.shown() == {"a": 9, "b": 9}


async def test_the_first_list_waits_for_an_api_server_that_is_away(tmp_path: Path) -> None:
    async with following(tmp_path, answered(503, {}), answered(429, {}), page(7, "a")) as one:
        await one.reflector.first()
        assert one.shown() == {"a": 7}
    async with following(tmp_path, answered(403, {"message": "not for you"})) as one:
        with pytest.raises(RefusedError, match="not for you"):
            await one.reflector.first()


async def test_whoever_asks_too_often_waits_for_as_long_as_the_api_server_says(tmp_path: Path) -> None:
    """Every request of the connection does, and nothing is sent before."""
    async with following(tmp_path, answered(429, {}, Retry_After="1"), page(7, "a")) as one:
        begun = time.monotonic()
        with pytest.raises(ApiUnavailableError):
            await one.reflector.list()
        await asyncio.gather(*(one.reflector.list() for _ in range(5)))
        assert time.monotonic() - begun >= 1
        assert one.shown() == {"a": 7}


async def test_a_pause_that_is_longer_than_the_time_limit_is_an_error_at_once(tmp_path: Path) -> None:
    async with following(tmp_path, answered(429, {}, Retry_After="99999999999"), page(7, "a")) as one:
        for why in ("answered 429", "takes no requests for 30 s"):
            with pytest.raises(ApiUnavailableError, match=why):
                await one.reflector.list()
        assert len(one.script.asked) == 1


@pytest.mark.parametrize("when", ["", "soon", "-5", "1.5e9", "Wed, 21 Oct 2099 07:28:00 GMT"])
async def test_a_retry_after_that_is_no_number_of_seconds_is_ignored(tmp_path: Path, when: str) -> None:
    async with following(tmp_path, answered(503, {}, Retry_After=when), page(7, "a")) as one:
        with pytest.raises(ApiUnavailableError):
            await one.reflector.list()
        await one.reflector.list()
        assert one.shown() == {"a": 7}


async def test_the_watch_tells_what_changes(tmp_path: Path) -> None:
    """Added, modified, deleted; and goes on where a bookmark was after an orderly end, without a list."""
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "20", "creationTimestamp": None}})
    told = [("ADDED", thing("b", 8)), ("MODIFIED", thing("a", 9)), ("DELETED", thing("b", 10))]
    first = watch(*(event(kind, shown) for kind, shown in told), bookmark)
    async with following(tmp_path, page(7, "a"), first, watch(event("ADDED", thing("c", 21)))) as one:
        await one.until({"a": 9, "c": 21})
        assert one.script.lists == 1
        assert [each.get("resourceVersion") for each in one.script.asked] == [None, "7", "20"]


@pytest.mark.parametrize("cached", [True, False])
async def test_only_who_follows_says_that_it_misses_nothing(tmp_path: Path, *, cached: bool) -> None:
    """Before the first watch and after one that broke there is trouble, with its reason."""
    answers = [page(7, "a"), watch(last=0.6), watch(last=0.6), answered(500, {"message": "broken"}), page(9, "b")]
    async with following(tmp_path, *answers, answered(403, {"message": "no more"}), cached=cached) as one:
        seen = [one.reflector.trouble]
        task = asyncio.create_task(one.reflector.run())
        try:
            async with asyncio.timeout(PATIENCE):
                while "no more" not in (seen[-1] or ""):
                    if one.reflector.trouble != seen[-1]:
                        seen.append(one.reflector.trouble)
                    await asyncio.sleep(0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert seen == ["not listed yet", None, "broken", "no more"]
        versions = [each.get("resourceVersion") for each in one.script.asked if "watch" not in each]
        assert versions == (["0", "7"] if cached else [None, None])


@pytest.mark.parametrize("lost", [answered(410, {}), answered(504, {"message": "Too large resource version: 9"})])
async def test_what_the_api_server_does_not_know_any_more_is_not_asked_for_twice(tmp_path: Path, lost: Answer) -> None:
    """Restored from a backup, it never comes to where the cache was: then the list is of the present."""
    answers = [page(7, "a"), answered(500, {}), lost, page(3, "b"), watch(event("ADDED", thing("c", 4)))]
    async with following(tmp_path, *answers, cached=True) as one:
        await one.until({"b": 3, "c": 4})
        versions = [each.get("resourceVersion") for each in one.script.asked if "watch" not in each]
        assert versions == ["0", "7", None]


@pytest.mark.parametrize(
    "broken",
    [
        watch(event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})),
        watch(event("ADDED", thing("b", 8))[:20], cut=True),
        watch(b"garbage\n"),
        watch(event("ADDED", {"metadata": {"name": "b"}})),
        watch(last=0.0),
        watch(last=4.0),
        answered(410, {"message": "gone"}),
        answered(500, {}),
    ],
    ids=["too-old", "cut", "garbage", "unreadable", "ends-at-once", "silent", "410", "500"],
)
async def test_after_anything_but_an_orderly_end_it_lists_again(tmp_path: Path, broken: Answer) -> None:
    answers = [page(7, "a", "b"), broken, page(9, "b"), watch(event("ADDED", thing("c", 10)))]
    async with following(tmp_path, *answers) as one:
        await one.until({"b": 9, "c": 10})
        assert one.script.lists == 2


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "just listed"])
async def test_a_watch_whose_version_was_compacted_away_is_no_fault(
    tmp_path: Path,
    quiet: bool,  # noqa: FBT001 - a case, and the only one
) -> None:
    """Events have no bookmarks: a quiet watch of them ends so every few minutes. That of a fresh list does not."""
    expired = watch(event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"}))
    before = [watch(last=0.6)] if quiet else []
    answers = [page(7, "a", "b"), *before, expired, page(9, "b"), watch(event("ADDED", thing("c", 10)))]
    with capture_logs() as logs:
        async with following(tmp_path, *answers) as one:
            await one.until({"b": 9, "c": 10})
    assert one.script.lists == 2
    assert ("dependency.failing" in [each["event"] for each in logs]) != quiet


async def test_an_optional_resource_is_followed_as_soon_as_it_is_defined(tmp_path: Path) -> None:
    """Said once; its first list has nothing, and a definition that goes away and returns is no fault either."""
    answers = [answered(404, {}), answered(404, {}), page(7, "a"), answered(404, {}), answered(404, {}), page(9, "b")]
    with capture_logs() as logs:
        async with following(tmp_path, *answers, watch(event("ADDED", thing("c", 10))), optional=True) as one:
            assert (one.reflector.defined, one.reflector.synced) == (True, False)
            await one.reflector.first()
            assert (one.reflector.defined, one.reflector.synced) == (False, False)
            assert one.reflector.trouble is None
            await one.until({"b": 9, "c": 10})
            assert (one.reflector.defined, one.reflector.synced) == (True, True)
            assert one.synced.is_set()
    events = [(each["event"], each.get("resource")) for each in logs]
    assert events == [("resource.undefined", "things")] * 2


async def test_an_optional_resource_that_is_refused_is_asked_for_again_slowly(tmp_path: Path) -> None:
    """Nobody knows whether it is defined; the refusal is reported until it ends."""
    refused = answered(403, {"message": "not for you"})
    answers = [page(7, "a"), refused, refused, refused, page(9, "b"), watch(event("ADDED", thing("c", 10)))]
    with capture_logs() as logs:
        async with following(tmp_path, *answers, optional=True) as one:
            await one.until({"a": 7})
            one.script.answers[:0] = [refused]
            with pytest.raises(RefusedError, match="not for you"):
                await one.reflector.first()
            await one.until({"b": 9, "c": 10})
            assert one.reflector.defined
    assert [each["event"] for each in logs] == ["dependency.failing", "dependency.recovered"]


async def test_a_resource_that_must_be_there_and_is_not_defined_is_an_error(tmp_path: Path) -> None:
    async with following(tmp_path, answered(404, {"message": "no such kind"})) as one:
        with pytest.raises(NotFoundError, match="no such kind"):
            await one.reflector.first()


async def test_each_namespace_is_followed_by_a_watch_of_its_own(tmp_path: Path) -> None:
    """One that is refused leaves the others alone. Until it was listed, nobody says that its objects are gone."""
    refused, moved = {"b"}, list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        namespace = request.path.split("/")[-2]
        if namespace in refused:
            return await answered(403, {"message": "not for you"})(request)
        shown = thing(f"of-{namespace}", 7 if namespace == "a" else 3)
        shown["metadata"]["namespace"] = namespace
        if "watch" in request.query:
            return await watch()(request)
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [shown]})

    async with following(tmp_path, answer) as one:
        follower = Follower(
            one.collection,
            lambda _before, after: moved.append(after.metadata.name if after else "none"),
            Clock(),
            Bulkhead(Clock()),
            namespaces=("a", "b"),
            undefined_seconds=0.05,
        )
        with pytest.raises(RefusedError):
            await follower.first()
        assert ([each.metadata.name for each in follower.objects], follower.listed) == (["of-a"], False)
        follower.record_write(Thing(Metadata("elsewhere", "uid", "9", "c")))
        refused.clear()
        task = asyncio.create_task(follower.run())
        await until(lambda: follower.synced, "both are followed")
        assert follower.listed
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        follower.record_write(Thing(Metadata("written", "uid", "9", "b")))
    assert moved == ["of-a", "of-b", "written"]


async def test_a_watch_that_is_never_allowed_is_no_storm(tmp_path: Path) -> None:
    answers: list[Answer] = []
    for _ in range(1000):
        answers += [page(7, "a"), answered(403, {"message": "you may list and not watch"})]
    async with following(tmp_path, *answers) as one:
        task = asyncio.create_task(one.reflector.run())
        await asyncio.sleep(2.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert 2 <= one.script.lists < 40


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RefusedError),
        (401, ApiUnavailableError),
        (403, RefusedError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, HistoryLostError),
        (422, RefusedError),
        (429, ApiUnavailableError),
        (500, ApiUnavailableError),
        (504, ApiUnavailableError),
    ],
)
async def test_a_refusal_says_what_to_do_next(tmp_path: Path, status: int, error: type[ApiError]) -> None:
    async with following(tmp_path, answered(status, {"message": "in its own words"}), answered(status, [])) as one:
        with pytest.raises(error, match="in its own words"):
            await one.collection.get(ObjectKey("space", "a"))
        with pytest.raises(error, match=f"answered {status}"):
            await one.collection.get(ObjectKey("space", "a"))


async def test_silence_and_absence_are_given_up(tmp_path: Path) -> None:
    async def silent(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(PATIENCE)
        return web.Response()

    async with following(tmp_path, silent, timeout_seconds=0.2) as one, asyncio.timeout(PATIENCE / 2):
        with pytest.raises(ApiUnavailableError, match="TimeoutError"):
            await one.collection.get(ObjectKey("space", "a"))
    server = await ApiServer.connect(kubeconfig(tmp_path, 1), timeout_seconds=1.0)
    try:
        with pytest.raises(ApiUnavailableError, match=r"cannot connect to http://127\.0\.0\.1:1: Connection refused"):
            await ResourceClient(server, THINGS, lambda data: msgspec.json.decode(data, type=Thing)).list()
    finally:
        await server.close()


async def test_a_password_that_netrc_has_for_the_host_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with following(tmp_path, page(1, "a")) as one:
        assert [each.metadata.name for each in (await one.collection.list()).objects] == ["a"]
        assert one.script.headers == ["Bearer secret"]


@pytest.mark.parametrize(("excepted", "reached"), [("", True), ("127.0.0.2", False)])
async def test_a_proxy_of_the_environment_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excepted: str, *, reached: bool
) -> None:
    async with following(tmp_path, page(1, "a")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", excepted)
        server = await ApiServer.connect(kubeconfig(tmp_path, 1, host="127.0.0.2"), timeout_seconds=1.0)
        try:
            with nullcontext() if reached else pytest.raises(ApiUnavailableError, match="Connection refused"):
                await ResourceClient(server, THINGS, lambda data: msgspec.json.decode(data, type=Thing)).list()
        finally:
            await server.close()
        assert len(proxy.script.asked) == reached


def strange(name: str, version: int) -> dict[str, Any]:
    """One that another version wrote."""
    return {**thing(name, version), "size": "large"}


async def test_an_object_that_does_not_decode_hides_no_other(tmp_path: Path) -> None:
    """In a list and in the watch; it is named once, keeps the last state that decoded, and comes back or goes."""
    last_page = answered(200, {"metadata": {"resourceVersion": "7"}, "items": [strange("d", 7), thing("c", 7)]})
    first = watch(*(event("MODIFIED", each) for each in (strange("a", 8), strange("a", 9), thing("e", 10))))
    later = watch(event("DELETED", strange("d", 11)), event("MODIFIED", thing("a", 12)))
    with capture_logs() as logs:
        async with following(tmp_path, page(7, "a", "b", more="token"), last_page, first, later) as one:
            await one.until({"a": 7, "b": 7, "c": 7, "e": 10})
            assert {key.name for key in one.cache.unread} == {"a", "d"}
            assert one.reflector.unread == 2
            await one.until({"a": 12, "b": 7, "c": 7, "e": 10})
            assert one.reflector.unread == 0
            assert one.script.lists == 2
    assert [(each["event"], each["kind"], each["name"]) for each in logs] == [
        ("object.unread", "things", "d"),
        ("object.unread", "things", "a"),
    ]
    assert all("size" in each["reason"] for each in logs)


async def test_an_object_that_does_not_decode_is_named(tmp_path: Path) -> None:
    async with following(tmp_path, answered(200, {"metadata": {"name": "strange"}})) as one:
        with pytest.raises(UnreadableError, match="strange of things does not decode"):
            await one.collection.get(ObjectKey("space", "a"))


@pytest.mark.parametrize("content", [None, "", "{}", "apiVersion: [", '{"current-context": "x", "contexts": []}'])
async def test_a_kubeconfig_that_is_no_good_is_said_in_a_sentence(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match="no cluster to connect to"):
        await ApiServer.connect(str(file), 1.0)
