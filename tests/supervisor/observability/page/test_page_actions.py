"""What people ask for on the page: who may, what protects it, and what is kept of it."""

import re
import time
from collections.abc import Mapping
from http.cookies import SimpleCookie

import pytest

from supervisor.domain.job import Phase, RequestKind
from supervisor.domain.notice import NoticeState
from supervisor.identity.tokens import Operator
from supervisor.observability.page.action_form import ACTIONS, ActionForm, PageAction
from tests.supervisor.observability.page.page_world import NODES, PageAnswer, get, post, sign_in
from tests.testkit.serving import Served
from tests.testkit.waiting import until

ANN = Operator(name="ann")


async def signed_in(served: Served, token: str | None = None) -> str:
    """A cookie; without a token that of the operator `ann`."""
    answer = await sign_in(served.peers, token or served.peers.tokens.operator("ann"))
    assert answer.cookie is not None
    return SimpleCookie(answer.cookie)["job_supervisor_viewer"].value


def fields(shown: PageAnswer) -> dict[str, str]:
    """The fields of a form with their values, as a browser sends them."""
    inputs = re.findall(r"<input [^>]*>", shown.text)
    found = [(re.search(r'name="([^"]*)"', each), re.search(r'value="([^"]*)"', each)) for each in inputs]
    return {name[1]: value[1] if value else "" for name, value in found if name and name[1] != "filter"}


async def asks(
    served: Served, cookie: str, action: str, query: str, given: Mapping[str, str] | None = None
) -> PageAnswer:
    """Opens a form, fills it in and sends it."""
    shown = await get(served.peers, f"/status/actions/{action}?{query}", cookie=cookie)
    assert shown.status == 200, shown.seen
    data = {**fields(shown), **(given or {})}
    return await post(served.peers, f"/status/actions/{action}", cookie=cookie, data=data)


async def running(served: Served) -> None:
    await served.peers.agents(NODES)
    await served.peers.running("job", NODES, min_workers=2)


async def test_a_job_is_suspended_and_resumed(served: Served) -> None:
    """And the record keeps who has asked for it, and why."""
    await running(served)
    ann = await signed_in(served)
    page = await get(served.peers, "/status/jobs/job", cookie=ann)
    assert "status/actions/suspend?job=job" in page.text
    answer = await asks(served, ann, "suspend", "job=job", given={"reason": "power cut"})
    assert (answer.status, answer.headers["Location"]) == (303, "../../status/jobs/job")
    await until(lambda: served.job("job").decision.phase is Phase.STOPPING)
    request = served.job("job").observed.request
    assert request is not None
    assert (request.kind, request.by, request.reason) == (RequestKind.SUSPEND, "ann", "power cut")
    page = await get(served.peers, "/status/jobs/job", cookie=ann)
    assert "ann asked to suspend it on the page: power cut." in page.seen
    assert "status/actions/resume?job=job" in page.text
    assert (await asks(served, ann, "resume", "job=job")).status == 303
    assert served.job("job").observed.request is None
    record = await get(served.peers, "/status/history?kind=job&name=job", cookie=ann)
    assert "ann asked to suspend it on the page: power cut." in record.seen
    assert "ann asked to resume it on the page." in record.seen


async def test_a_drill_and_a_drain_are_held_and_ended(served: Served) -> None:
    await running(served)
    ann = await signed_in(served)
    form = await get(served.peers, "/status/actions/drill?node=n3", cookie=ann)
    assert "1 job has workers there: job." in form.seen
    for begin, end, source in (("drill", "end-drill", "simulated"), ("drain", "undrain", "operator")):
        assert (await asks(served, ann, begin, "node=n3", given={"minutes": "5"})).status == 303
        (notice,) = [each for each in served.store.snapshot().notices.values() if each.source == source]
        assert notice.deadline is not None
        assert 290 < notice.deadline - notice.first_seen <= 300
        await until(lambda: "n3" in served.job("job").decision.exclusions)
        assert (await asks(served, ann, end, "node=n3")).status == 303
        (notice,) = [each for each in served.store.snapshot().notices.values() if each.source == source]
        assert notice.state is not NoticeState.ACTIVE
    record = await get(served.peers, "/status/history?kind=node&name=n3", cookie=ann)
    assert "ann drained it, 5 minutes ahead on the page." in record.seen


async def test_what_is_under_way_can_be_ended_from_its_form(served: Served) -> None:
    await running(served)
    ann = await signed_in(served)
    assert (await asks(served, ann, "drill", "node=n2")).status == 303
    form = await get(served.peers, "/status/actions/drill", cookie=ann)
    assert "n2: end it" in form.seen
    assert "status/actions/end-drill?node=n2" in form.text
    assert "end it" not in (await get(served.peers, "/status/actions/drain", cookie=ann)).seen


async def test_the_record_keeps_what_was_asked_for_and_not_done(served: Served) -> None:
    ann = await signed_in(served)
    assert (await asks(served, ann, "suspend", "job=other")).status == 404
    record = await get(served.peers, "/status/history?kind=job&name=other", cookie=ann)
    assert "ann asked to suspend it on the page. That was not done: There is no such job." in record.seen


async def test_looking_at_a_form_changes_nothing(served: Served) -> None:
    await running(served)
    ann = await signed_in(served)
    for action in PageAction:
        subject = ACTIONS[action].subject
        shown = await get(served.peers, f"/status/actions/{action}?{subject}=job", cookie=ann)
        assert (shown.status, ACTIONS[action].consequences in shown.seen) == (200, True)
    assert served.job("job").observed.request is None
    assert not served.store.snapshot().notices


async def test_a_viewer_can_do_nothing(served: Served) -> None:
    """No page offers it, no form is shown, and a form of somebody else does not work."""
    await running(served)
    ann, viewer = await signed_in(served), await signed_in(served, served.peers.tokens.viewer())
    for path in ("/", "/status/jobs/job"):
        assert "status/actions" not in (await get(served.peers, path, cookie=viewer)).text
    refused = await get(served.peers, "/status/actions/stop?job=job", cookie=viewer)
    assert (refused.status, "A viewer may look and do nothing" in refused.seen) == (403, True)
    stolen = fields(await get(served.peers, "/status/actions/stop?job=job", cookie=ann))
    answer = await post(served.peers, "/status/actions/stop", cookie=viewer, data=stolen)
    assert answer.status == 400
    assert (await post(served.peers, "/status/actions/stop", data=stolen)).status == 401
    assert served.job("job").observed.request is None


@pytest.mark.parametrize("form", ["", "nonsense", "of another action", "of another person", "of another job"])
async def test_a_form_of_another_site_does_nothing(served: Served, form: str) -> None:
    """Another site knows no form token: neither one of the same person, nor one for that action."""
    await running(served)
    ann = await signed_in(served)
    bob = await signed_in(served, served.peers.tokens.operator("bob"))
    cookie, action = (bob, "stop") if form == "of another person" else (ann, "resume")
    job = "job"
    if form == "of another job":
        action, job = "stop", "other"
    shown = await get(served.peers, f"/status/actions/{action}?job={job}", cookie=cookie)
    token = fields(shown)["form"] if form.startswith("of") else form
    answer = await post(served.peers, "/status/actions/stop", cookie=ann, data={"job": "job", "form": token})
    assert (answer.status, "form" in answer.seen) == (400, True)
    assert served.job("job").observed.request is None


async def test_a_browser_says_that_another_site_has_sent_it(served: Served) -> None:
    await running(served)
    ann = await signed_in(served)
    data = fields(await get(served.peers, "/status/actions/stop?job=job", cookie=ann))
    headers = {"Sec-Fetch-Site": "cross-site"}
    answer = await post(served.peers, "/status/actions/stop", cookie=ann, data=data, headers=headers)
    assert answer.status == 400
    assert served.job("job").observed.request is None


async def test_a_form_is_too_old_after_an_hour(served: Served) -> None:
    await running(served)
    ann = await signed_in(served)
    old = served.peers.tokens.form("Operator:ann", "stop job/job", time.time() - 1)
    answer = await post(served.peers, "/status/actions/stop", cookie=ann, data={"job": "job", "form": old})
    assert (answer.status, "open it again" in answer.seen) == (400, True)


@pytest.mark.parametrize(
    ("action", "query", "status", "why"),
    [
        ("suspend", "job=other", 404, "There is no such job."),
        ("drain", "node=other", 404, "No agent of such a node is known."),
        ("drill", "", 400, "The form names no node."),
    ],
)
async def test_what_cannot_be_done_is_said_in_the_form(
    served: Served, action: str, query: str, status: int, why: str
) -> None:
    answer = await asks(served, await signed_in(served), action, query)
    assert (answer.status, why in answer.seen) == (status, True)


@pytest.mark.parametrize("given", [{"minutes": "soon"}, {"minutes": "-1"}, {"minutes": "nan"}, {"reason": "a" * 300}])
async def test_a_form_that_is_filled_in_wrongly_is_refused(served: Served, given: dict[str, str]) -> None:
    await running(served)
    assert (await asks(served, await signed_in(served), "drain", "node=n1", given=given)).status == 400
    assert not served.store.snapshot().notices


async def test_names_are_escaped(served: Served) -> None:
    ann = await signed_in(served)
    shown = await get(served.peers, "/status/actions/suspend?job=%3Cscript%3E%22", cookie=ann)
    assert shown.status == 200
    assert "<script>" not in shown.text.partition("<body>")[2]
    assert '<script>"?' in shown.seen
    assert fields(shown)["job"] == "&lt;script&gt;&#34;"


async def test_nobody_asks_for_too_much(served: Served) -> None:
    """One person's limit is no other's."""
    await running(served)
    ann, bob = await signed_in(served), await signed_in(served, served.peers.tokens.operator("bob"))
    form = fields(await get(served.peers, "/status/actions/resume?job=job", cookie=ann))
    answers = [await post(served.peers, "/status/actions/resume", cookie=ann, data=form) for _ in range(25)]
    assert [each.status for each in answers[:20]] == [303] * 20
    assert answers[-1].status == 429
    assert (await asks(served, bob, "resume", "job=job")).status == 303


async def test_nobody_opens_too_many_forms(served: Served) -> None:
    """Each asks for rights."""
    await running(served)
    ann = await signed_in(served)
    shown = [await get(served.peers, "/status/actions/resume?job=job", cookie=ann) for _ in range(25)]
    assert (shown[0].status, shown[-1].status) == (200, 429)


async def test_a_link_signs_in_once(served: Served) -> None:
    """Looking at it, as programs do that preview links, does not use it up."""
    now = time.time()
    code = served.peers.tokens.code(ANN, now, now + 60)
    for _ in range(2):
        shown = await get(served.peers, f"/status/login?code={code}")
        assert (shown.status, "Sign in as ann" in shown.seen) == (200, True)
    answer = await post(served.peers, "/status/login", data=fields(shown))
    assert answer.status == 303
    assert answer.cookie is not None
    cookie = SimpleCookie(answer.cookie)["job_supervisor_viewer"].value
    assert "ann" in (await get(served.peers, "/", cookie=cookie)).seen
    again = await post(served.peers, "/status/login", data=fields(shown))
    assert (again.status, "used before" in again.seen, again.cookie) == (401, True, None)


async def test_a_link_is_no_session_and_no_token(served: Served) -> None:
    now = time.time()
    code = served.peers.tokens.code(ANN, now, now + 60)
    assert (await get(served.peers, "/", cookie=code)).status == 403
    assert (await get(served.peers, "/", token=code)).status == 403
    assert (await get(served.peers, "/v1/status", token=code)).status == 403


async def test_a_link_from_before_the_supervisor_began_is_refused(served: Served) -> None:
    """It may have been used: which links were is forgotten."""
    code = served.peers.tokens.code(ANN, time.time() - 3600, time.time() + 60)
    assert (await post(served.peers, "/status/login", data={"code": code})).status == 401


async def test_a_session_does_nothing_elsewhere(served: Served) -> None:
    """Whoever steals a cookie has no operator's token."""
    await running(served)
    ann = await signed_in(served)
    answer = await served.peers.post("/v1/jobs/stop", ann, {"job": "job"})
    assert answer.code == "foreign_token"


def test_every_action_asks_for_something() -> None:
    for action in PageAction:
        form = ActionForm.read(action, {ACTIONS[action].subject: "x"})
        assert form.asked() is not None
