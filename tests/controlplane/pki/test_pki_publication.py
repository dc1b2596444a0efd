"""The CA is published in a ConfigMap for agents and in the webhook configuration for the API server."""

import base64
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.pki.keys import CA, Keys
from supervisor.pki.trust import TrustPublisher, publish_in_config_map, publish_in_webhooks
from tests.controlplane.pki.pki_world import CONFIG_MAP, CONFIG_MAP_PATH, CORE, WEBHOOK, WEBHOOKS, Shared
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

TRUSTED = Keys.make(0).trusted + Keys.make(0).trusted


class Publisher:
    """A publication in the test's own process, which says what `trusted` is, for as long as it `leads`."""

    def __init__(self, shared: Shared, server: ApiServer) -> None:
        self.shared = shared
        self.server = server
        self.trusted = TRUSTED
        self.leads = True
        places = {
            f"ConfigMap {CONFIG_MAP}": partial(publish_in_config_map, server, ObjectKey("default", CONFIG_MAP)),
            f"MutatingWebhookConfiguration {WEBHOOK}": partial(publish_in_webhooks, server, WEBHOOK),
        }
        self.publication = TrustPublisher(places, lambda: self.trusted, lambda: self.leads, Clock(), Bulkhead(Clock()))

    async def install(self, *names: str, **client: str) -> None:
        service = {"service": {"name": WEBHOOK, "namespace": "default", "path": "/mutate-pods"}}
        webhook = {
            "clientConfig": {**service, **client},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "objectSelector": {"matchLabels": {"no": "pod"}},
        }
        webhooks = [{"name": name, **webhook} for name in names]
        await self.shared.api.create(WEBHOOKS, {"metadata": {"name": WEBHOOK}, "webhooks": webhooks})

    async def webhooks(self) -> list[Any]:
        return list((await self.shared.api.get(f"{WEBHOOKS}/{WEBHOOK}"))["webhooks"])

    async def bundles(self) -> list[bytes]:
        return [base64.b64decode(each["clientConfig"].get("caBundle", "")) for each in await self.webhooks()]


@pytest.fixture
async def publisher(shared: Shared) -> AsyncIterator[Publisher]:
    async with shared.server() as server:
        yield Publisher(shared, server)


async def test_it_is_said_in_both_places(publisher: Publisher) -> None:
    await publisher.install("one.kubeai.example", "two.kubeai.example")
    before = await publisher.webhooks()
    await publisher.publication.once()
    assert await publisher.shared.trusted() == TRUSTED
    assert await publisher.bundles() == [TRUSTED, TRUSTED]
    for webhook in (after := await publisher.webhooks()):
        del webhook["clientConfig"]["caBundle"]
    assert after == before


async def test_what_somebody_changes_is_put_right(publisher: Publisher) -> None:
    """Another CA, none, a key of their own, a ConfigMap that is gone; what is theirs stays."""
    await publisher.install("one.kubeai.example", caBundle=base64.b64encode(Keys.make(0).trusted).decode())
    await publisher.publication.once()
    await publisher.shared.api.patch(CONFIG_MAP_PATH, {"data": {CA: "mine", "theirs": "stays"}})
    await publisher.publication.once()
    data = (await publisher.shared.api.get(CONFIG_MAP_PATH))["data"]
    assert data == {CA: TRUSTED.decode(), "theirs": "stays"}
    await publisher.shared.api.patch(CONFIG_MAP_PATH, {"data": None})
    await publisher.publication.once()
    assert await publisher.shared.trusted() == TRUSTED
    await publisher.shared.api.delete(CONFIG_MAP_PATH)
    await publisher.publication.once()
    assert await publisher.shared.trusted() == TRUSTED
    assert await publisher.bundles() == [TRUSTED]


async def test_what_is_right_is_not_written(publisher: Publisher) -> None:
    await publisher.install("one.kubeai.example")
    await publisher.publication.once()
    before = publisher.server.requests
    await publisher.publication.once()
    assert publisher.server.requests - before == 2


async def test_whoever_does_not_lead_says_nothing(publisher: Publisher) -> None:
    """Two that trust different CAs in the middle of a change would undo each other's word."""
    publisher.leads = False
    await publisher.publication.once()
    with pytest.raises(ObjectRefused, match="404"):
        await publisher.shared.trusted()


async def test_one_place_that_is_missing_is_no_harm_to_the_other(publisher: Publisher) -> None:
    with capture_logs() as logged:
        soon = await publisher.publication.once()
        assert await publisher.publication.once() == soon
        await publisher.install("one.kubeai.example")
        assert await publisher.publication.once() > soon
    assert await publisher.shared.trusted() == TRUSTED
    assert await publisher.bundles() == [TRUSTED]
    assert [(line["event"], line["dependency"]) for line in logged if "dependency" in line] == [
        ("dependency.failing", f"CA in MutatingWebhookConfiguration {WEBHOOK}"),
        ("dependency.recovered", f"CA in MutatingWebhookConfiguration {WEBHOOK}"),
    ]


async def test_a_real_leader_says_it_in_both_places(publisher: Publisher) -> None:
    shared = publisher.shared
    await publisher.install("one.kubeai.example")
    silent = await shared.start(tls_names="", webhook_name="")
    await silent.kill()
    assert CONFIG_MAP not in [
        each["metadata"]["name"] for each in (await shared.api.get(f"{CORE}/configmaps"))["items"]
    ]
    await shared.start(webhook_name=WEBHOOK)
    expected = (await shared.secret())[CA]

    async def said() -> bool:
        return await shared.trusted() == expected and await publisher.bundles() == [expected]

    await until(said, "the CA in both places")
