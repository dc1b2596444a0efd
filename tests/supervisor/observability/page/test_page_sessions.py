"""Sessions of the status page: who may sign in, and for how long."""

import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from pathlib import Path

import jwt
import pytest

from simulator.certificates import SimulatedAuthority
from supervisor.identity.tokens import Tokens
from tests.supervisor.observability.page.page_world import PageAnswer, get, post, sign_in, stream, viewing
from tests.testkit.serving import Served, serving, tls_settings


def kept(answer: PageAnswer) -> str:
    assert answer.cookie is not None
    return SimpleCookie(answer.cookie)["job_supervisor_viewer"].value


def ends(answer: PageAnswer) -> float:
    """When the session that was given does, whatever the browser does about it."""
    claims = jwt.decode(kept(answer), options={"verify_signature": False})
    assert claims["kind"] == "session"
    return float(claims["exp"])


async def test_a_stranger_gets_the_form_and_nothing_else(served: Served) -> None:
    answer = await get(served.peers)
    assert (answer.status, answer.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert "Viewer token" in answer.seen
    assert "Jobs" not in answer.seen
    assert (await get(served.peers, "/status/stream")).status == 401
    # Who comes for the first time is nobody that was refused; who asks for the stream is.
    assert (await served.status())["refused"] == [{"wire": "http", "code": "bad_token", "count": 1}]


@pytest.mark.parametrize("path", ["/", "/status"])
async def test_a_viewers_token_opens_the_page(served: Served, path: str) -> None:
    answer = await get(served.peers, path, token=served.peers.tokens.viewer())
    assert (answer.status, answer.cookie) == (200, None)
    assert "Nothing is being reclaimed" in answer.seen
    assert "Sign out" not in answer.seen


async def test_signing_in_gives_the_browser_a_session(served: Served) -> None:
    """That scripts cannot read and other sites cannot use; it is no copy of the token."""
    token = served.peers.tokens.viewer()
    answer = await sign_in(served.peers, f" {token}\n")
    assert (answer.status, answer.headers["Location"]) == (303, "../")
    assert answer.cookie is not None
    for attribute in ("HttpOnly", "SameSite=Strict", "Path=/"):
        assert attribute in answer.cookie
    assert "Secure" not in answer.cookie
    assert kept(answer) != token
    page = await get(served.peers, cookie=kept(answer))
    assert (page.status, "Sign out" in page.seen) == (200, True)


async def test_with_tls_a_session_travels_by_tls_alone(tmp_path: Path) -> None:
    authority = SimulatedAuthority(tmp_path / "tls")
    async with serving(tmp_path, authority.ca_pem, **tls_settings(authority)) as served:
        answer = await sign_in(served.peers, served.peers.tokens.viewer())
    assert answer.cookie is not None
    assert "Secure" in answer.cookie


async def test_a_session_ends_after_half_a_day(served: Served) -> None:
    """Also where the token never does; and the supervisor sees to it, not the browser."""
    left = ends(await sign_in(served.peers, served.peers.tokens.viewer())) - time.time()
    assert 11.9 * 3600 < left <= 12 * 3600


async def test_a_session_never_outlives_its_token(served: Served) -> None:
    until = time.time() + 60
    assert ends(await sign_in(served.peers, served.peers.tokens.viewer(until))) <= until


async def test_an_operators_token_is_kept_as_a_viewers(served: Served) -> None:
    answer = await sign_in(served.peers, served.peers.tokens.operator("ann"))
    assert answer.status == 303
    assert ends(answer)


Make = Callable[[Tokens], str]


@pytest.mark.parametrize(
    ("make", "status", "why"),
    [
        (lambda tokens: tokens.viewer(time.time() - 5), 401, "expired"),
        (lambda tokens: tokens.agent("n1"), 403, "one of a viewer or an operator is needed"),
        (lambda tokens: tokens.launcher("alice"), 403, "one of a viewer or an operator is needed"),
        (lambda tokens: tokens.process("job", "uid", 1), 403, "one of a viewer or an operator is needed"),
        (lambda _tokens: "nonsense", 401, "not issued by this supervisor"),
        (lambda _tokens: "", 401, "not issued by this supervisor"),
    ],
)
async def test_any_other_token_is_refused_with_a_sentence(served: Served, make: Make, status: int, why: str) -> None:
    """In the form, as a session, and in the header; each is counted."""
    token = make(served.peers.tokens)
    form = await sign_in(served.peers, token)
    assert (form.status, form.cookie) == (status, None)
    assert why in form.seen
    assert (await get(served.peers, cookie=token or "-")).status == status
    assert (await get(served.peers, token=token)).status == status
    assert sum(each["count"] for each in (await served.status())["refused"]) == 3


async def test_a_session_is_none_elsewhere(served: Served) -> None:
    session = kept(await sign_in(served.peers, served.peers.tokens.viewer()))
    assert (await get(served.peers, "/v1/status", cookie=session)).status == 401


async def test_signing_out_takes_the_session_from_the_browser(served: Served) -> None:
    answer = await post(served.peers, "/status/logout")
    assert answer.status == 303
    assert answer.cookie is not None
    assert "Max-Age=0" in answer.cookie


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_sites_page_cannot_sign_anybody_in_or_out(served: Served, site: str) -> None:
    headers = {"Sec-Fetch-Site": site}
    answer = await sign_in(served.peers, served.peers.tokens.viewer(), **headers)
    assert (answer.status, answer.cookie) == (400, None)
    answer = await post(served.peers, "/status/logout", headers=headers)
    assert (answer.status, answer.cookie) == (400, None)


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"token", 400), (b"tok=en", 400), (b"token=a&token=b", 400), (b"\xff", 400), (b"a" * 20_000, 413)],
)
async def test_what_is_no_form_is_refused(served: Served, body: bytes, status: int) -> None:
    assert (await post(served.peers, "/status/login", data=body)).status == status
    assert (await viewing(served)).status == 200


async def test_a_stream_ends_with_its_session(served: Served) -> None:
    looking = await stream(served.peers, served.peers.tokens.viewer(time.time() + 2))
    lines = [await looking.line()]
    while lines[-1].get("type") == "page":
        lines.append(await looking.line())
    assert lines[-1] == {"type": "goodbye", "reason": "the session is over"}
