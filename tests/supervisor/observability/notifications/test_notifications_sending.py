"""Messages reach real receivers, whatever these do, and whatever they do costs nothing else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.__main__ import main
from supervisor.observability.notifications.config import NotificationConfig, load
from supervisor.observability.notifications.delivery import (
    MAX_RETRY_AFTER,
    Attempt,
    DeliveryOutcome,
    NotificationOutbox,
    OutboxLimits,
    Outcomes,
    Poster,
    judged,
)
from supervisor.observability.notifications.message import (
    Choice,
    NotificationKind,
    NotificationMessage,
    Occurrence,
    Origin,
    messages,
)
from supervisor.settings import PREFIX
from tests.supervisor.observability.notifications.notifications_world import (
    SECRET,
    Behaviour,
    answering,
    at_first,
    configured,
    endless_head,
    garbage,
    hang,
    occurrence,
    receiving,
    reset,
    talk_for_ever,
)
from tests.testkit.waiting import until

QUICK = OutboxLimits(max_messages=3, max_age_seconds=60.0, first_pause=0.01, max_pause=0.02)


def message(*occurrences: Occurrence) -> NotificationMessage:
    return next(messages(occurrences or (occurrence(),), Choice(frozenset(NotificationKind)), Origin()))


class Sending:
    """The outboxes of a file's targets, while they send."""

    def __init__(self, config: NotificationConfig, limits: OutboxLimits = QUICK) -> None:
        self.leads = True
        self.outcomes = Outcomes()
        self.outboxes = [
            NotificationOutbox(target, self.outcomes, lambda: self.leads, Clock(), limits, Bulkhead(Clock()))
            for target in config.targets
        ]

    def put(self, one: NotificationMessage) -> None:
        for outbox in self.outboxes:
            outbox.put(one)

    def counted(self) -> Mapping[str, int]:
        return {f"{target} {outcome}": count for (target, outcome), count in self.outcomes.items() if count}


@asynccontextmanager
async def sending(
    config: NotificationConfig, limits: OutboxLimits = QUICK, *, timeout_seconds: float = 30.0, proxy: str = ""
) -> AsyncIterator[Sending]:
    one, poster = Sending(config, limits), Poster.open(timeout_seconds, proxy)
    async with poster.session:
        tasks = [asyncio.create_task(outbox.run(poster)) for outbox in one.outboxes]
        try:
            yield one
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_message_is_one_request(tmp_path: Path) -> None:
    async with receiving(answering(200)) as there, sending(load(configured(tmp_path, {"team": there.url}))) as here:
        here.put(message())
        await until(lambda: here.counted() == {"team sent": 1})
        ((head, _),) = there.requests
        assert head.startswith(f"POST {SECRET} HTTP/1.1\r\n")
        assert "Content-Type: application/json\r\n" in head
        assert there.messages[0]["kind"] == "suspended"


@pytest.mark.parametrize(
    "trouble",
    [answering(500), answering(503), answering(429, "Retry-After: 0"), answering(408), reset, garbage],
    ids=["500", "503", "429", "408", "reset", "garbage"],
)
async def test_trouble_that_may_pass_is_tried_again(tmp_path: Path, trouble: Behaviour) -> None:
    """The same message, under the same id."""
    behaviour = at_first(trouble, 2, answering(204, body=b""))
    async with receiving(behaviour) as there, sending(load(configured(tmp_path, {"team": there.url}))) as here:
        here.put(message())
        await until(lambda: here.counted() == {"team sent": 1})
        assert len({one["id"] for one in there.messages}) == 1
        assert len(there.requests) == 3


@pytest.mark.parametrize("trouble", [hang, endless_head], ids=["hangs", "endless head"])
async def test_a_receiver_that_does_not_come_to_an_end_is_given_up(tmp_path: Path, trouble: Behaviour) -> None:
    behaviour = at_first(trouble, 1, answering(200))
    config = load(configured(tmp_path, {"team": ""}))
    async with receiving(behaviour) as there, sending(config, timeout_seconds=0.5) as here:
        (tmp_path / "team.url").write_text(there.url, encoding="utf-8")
        here.put(message())
        await until(lambda: here.counted() == {"team sent": 1})


async def test_an_answer_without_an_end_is_not_read(tmp_path: Path) -> None:
    async with receiving(talk_for_ever) as there, sending(load(configured(tmp_path, {"team": there.url}))) as here:
        for number in (1, 2):
            here.put(message(occurrence(number=number)))
        await until(lambda: here.counted() == {"team sent": 2})


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(tmp_path: Path, status: int) -> None:
    async with (
        receiving(answering(200)) as elsewhere,
        receiving(answering(status, f"Location: {elsewhere.url}")) as there,
        sending(load(configured(tmp_path, {"team": there.url}))) as here,
    ):
        here.put(message())
        await until(lambda: here.counted() == {"team failed": 1})
        assert (len(there.requests), elsewhere.connections) == (1, 0)


async def test_what_is_refused_for_good_is_not_tried_again(tmp_path: Path) -> None:
    behaviour = at_first(answering(404), 1, answering(200))
    async with receiving(behaviour) as there, sending(load(configured(tmp_path, {"team": there.url}))) as here:
        for number in (1, 2):
            here.put(message(occurrence(number=number)))
        await until(lambda: here.counted() == {"team failed": 1, "team sent": 1})
        assert len(there.requests) == 2


async def test_a_dead_target_delays_no_other(tmp_path: Path) -> None:
    """Its oldest messages make room for new ones, and are counted."""
    async with receiving(hang) as dead, receiving(answering(200)) as well:
        config = load(configured(tmp_path, {"dead": dead.url, "well": well.url}))
        async with sending(config) as here:
            here.put(message(occurrence(number=0)))
            await until(lambda: dead.requests)
            for number in range(1, 6):
                here.put(message(occurrence(number=number)))
                await well.has(number + 1)
            await until(lambda: here.counted() == {"well sent": 6, "dead dropped": 2})
            assert len(dead.requests) == 1


async def test_the_oldest_makes_room(tmp_path: Path) -> None:
    """All but the one that is being sent."""
    async with receiving(answering(200)) as there, sending(load(configured(tmp_path, {"team": there.url}))) as here:
        here.leads = False
        here.put(message(occurrence(number=0)))
        await until(lambda: not here.outboxes[0].waiting)
        for number in range(1, 6):
            here.put(message(occurrence(number=number)))
        here.leads = True
        await there.has(4)
        assert [each["events"][0]["hosts"] for each in there.messages] == [["n0"], ["n3"], ["n4"], ["n5"]]


async def test_what_is_too_old_is_dropped(tmp_path: Path) -> None:
    config = load(configured(tmp_path, {"team": "http://127.0.0.1:1/"}))
    async with sending(config, OutboxLimits(max_age_seconds=0.05, first_pause=0.01, max_pause=0.02)) as here:
        here.put(message())
        await until(lambda: here.counted() == {"team dropped": 1})


async def test_only_a_leader_sends(tmp_path: Path) -> None:
    async with receiving(answering(200)) as there, receiving(answering(200)) as other:
        config = load(configured(tmp_path, {"team": there.url}))
        (tmp_path / "other").mkdir()
        async with (
            sending(config) as here,
            sending(load(configured(tmp_path / "other", {"team": other.url}))) as marker,
        ):
            here.leads = False
            here.put(message())
            for number in range(5):
                marker.put(message(occurrence(number=number)))
                await other.has(number + 1)
            assert there.connections == 0
            here.leads = True
            await until(lambda: here.counted() == {"team sent": 1})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "x" * 9999,
        f"ftp://host.invalid{SECRET}",
        f"http://host.invalid{SECRET}",
        f"http://[host.invalid{SECRET}",
        f"http://host.invalid:99999{SECRET}",
        f"http://127.0.0.1:1{SECRET}",
        f"https://127.0.0.1:1{SECRET}",
    ],
)
async def test_no_error_says_what_the_url_is(tmp_path: Path, text: str) -> None:
    file, poster = tmp_path / "url", Poster.open(30.0, "")
    file.write_text(text, encoding="utf-8")
    async with poster.session:
        attempt = await poster.post(file, b"{}")
    assert attempt.outcome is None
    assert attempt.reason
    for part in ("secret", "T000", "host.invalid", "127.0.0.1"):
        assert part not in attempt.reason


@pytest.mark.parametrize("behaviour", [garbage, reset, endless_head, answering(404)])
async def test_no_error_of_a_receiver_says_what_the_url_is(tmp_path: Path, behaviour: Behaviour) -> None:
    """The library puts the URL into some of its errors."""
    file, poster = tmp_path / "url", Poster.open(2.0, "")
    async with receiving(behaviour) as there, poster.session:
        file.write_text(there.url, encoding="utf-8")
        attempt = await poster.post(file, b"{}")
    assert attempt.reason
    for part in ("secret", "T000", "127.0.0.1"):
        assert part not in attempt.reason


async def test_the_url_is_read_each_time_and_never_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A Secret that is rotated or appears later counts from the next attempt on."""
    config = load(configured(tmp_path, {"team": ""}))
    async with receiving(reset) as before, receiving(answering(200)) as there, sending(config) as here:
        (tmp_path / "team.url").write_text(before.url, encoding="utf-8")
        here.put(message())
        await before.has(2)
        (tmp_path / "team.url").write_text(there.url, encoding="utf-8")
        await until(lambda: here.counted() == {"team sent": 1})
    said = capfd.readouterr()
    logged = said.out + said.err
    assert "dependency.failing" in logged
    assert "dependency.recovered" in logged
    assert "secret" not in logged
    assert before.url.rpartition(":")[2].partition("/")[0] not in logged


async def test_a_proxy_is_asked_if_one_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the environment are not: what the supervisor uses is in its settings."""
    async with receiving(answering(200)) as proxy, receiving(answering(200)) as there:
        monkeypatch.setenv("http_proxy", proxy.url)
        config = load(configured(tmp_path, {"team": there.url}))
        async with sending(config) as here:
            here.put(message())
            await until(lambda: there.requests)
        assert proxy.connections == 0
        async with sending(config, proxy=proxy.url.removesuffix(SECRET)) as here:
            here.put(message())
            await until(lambda: proxy.requests)
        assert proxy.requests[0][0].startswith(f"POST {there.url} HTTP/1.1")
        assert len(there.requests) == 1


@pytest.mark.parametrize(
    ("status", "header", "attempt"),
    [
        (202, "", Attempt(DeliveryOutcome.SENT)),
        (429, "7", Attempt(None, "answered 429", 7.0)),
        (503, "999999", Attempt(None, "answered 503", MAX_RETRY_AFTER)),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", Attempt(None, "answered 503", 0.0)),
        (503, "soon", Attempt(None, "answered 503", 0.0)),
        (503, "-5", Attempt(None, "answered 503", 0.0)),
        (503, "9" * 400, Attempt(None, "answered 503", MAX_RETRY_AFTER)),
        (410, "", Attempt(DeliveryOutcome.FAILED, "answered 410")),
        (302, "", Attempt(DeliveryOutcome.FAILED, "answered 302; redirects are not followed")),
    ],
)
def test_what_an_answer_means(status: int, header: str, attempt: Attempt) -> None:
    assert judged(status, header) == attempt


async def test_a_test_message_goes_to_every_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(answering(200)) as well, receiving(answering(404)) as bad:
        path = configured(tmp_path, {"well": well.url, "bad": bad.url}, format="slack")
        monkeypatch.setenv(f"{PREFIX}NOTIFICATIONS_FILE", str(path))
        assert await asyncio.to_thread(main, ["notify-test"]) == 1
        assert capsys.readouterr().out == "well: sent\nbad: failed: answered 404\n"
        assert well.messages == [{"text": "[prod] A test of the elastic job supervisor's notifications"}]
