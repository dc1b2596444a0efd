"""The status page on a cluster: whoever leads serves it, with the secret that all supervisors share."""

from http.cookies import SimpleCookie

import pytest

from tests.controlplane.pki.pki_world import Shared
from tests.supervisor.observability.page.page_world import get, sign_in
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


async def test_a_browser_stays_signed_in_when_another_supervisor_leads(shared: Shared) -> None:
    """With the token that the documented command prints; the certificate is the one that the CA is published for."""
    first = await shared.start()
    second = await shared.start(serving=False)
    printed = await shared.token("viewer", "--days", "1")
    async with shared.peers(first) as peers:
        answer = await sign_in(peers, printed.stdout)
        assert answer.cookie is not None
        assert "Secure" in answer.cookie
        session = SimpleCookie(answer.cookie)["job_supervisor_viewer"].value
        assert "Nothing is being reclaimed" in (await get(peers, cookie=session)).seen
    await first.kill()
    await until(lambda: second.serves)
    async with shared.peers(second) as peers:
        assert (await get(peers, cookie=session)).status == 200
        assert (await get(peers)).status == 401
