"""A real API server asks a real supervisor about pods, and makes them whatever it is told."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from servicekit.tls import Files
from supervisor.domain.notice import Subject, SubjectKind
from supervisor.jobs.trainingjob.discovery import DISCOVERY
from supervisor.webhook.server import PATH
from tests.controlplane.pki.pki_world import SECRET, SECRET_PATH, WEBHOOK
from tests.controlplane.webhook.webhook_world import PUBLIC, WebhookWorld, documented
from tests.supervisor.decide.decide_builders import notice
from tests.supervisor.webhook.webhook_pods import (
    OPTED_IN,
    PREFIX,
    Manifest,
    allows,
    container,
    files,
    launcher,
    mounts,
    pod,
    terms,
    volume,
)
from tests.testkit.waiting import until

_DIRECTORY = {"name": "job-supervisor", "mountPath": "/var/run/kubeai", "readOnly": True}
_SCRIPT = {**_DIRECTORY, "mountPath": "/etc/edl/discover_hosts.sh", "subPath": "discover_hosts.sh"}


def _shaped(made: Manifest) -> bool:
    return volume(made) is not None


async def test_opted_in_pods_are_shaped_and_admitted(world: WebhookWorld) -> None:
    await world.ask(await world.supervisor())
    made = await world.make(pod(containers=[container(), container("other")]))
    assert [mounts(each) for each in made["spec"]["containers"]] == [[_DIRECTORY], [_DIRECTORY]]
    assert set(files(made)) == {"token", "address", "ca.crt", "annotations"}
    assert made["metadata"]["annotations"] == {
        **OPTED_IN,
        f"{PREFIX}address": PUBLIC,
        f"{PREFIX}ca": world.authority.ca_pem.decode(),
    }
    for annotations in ({}, {f"{PREFIX}spot-instance": "false"}):
        assert not _shaped(await world.make(pod(annotations=annotations)))
    spot = await world.make(pod(annotations={f"{PREFIX}spot-instance": "true"}))
    assert _shaped(spot)


async def test_a_launcher_is_admitted_with_our_script(world: WebhookWorld) -> None:
    await world.ask(await world.supervisor())
    made = await world.make(launcher())
    assert mounts(made["spec"]["containers"][0]) == [_DIRECTORY, _SCRIPT]
    assert made["metadata"]["annotations"][f"{PREFIX}discovery-script"] == DISCOVERY
    assert not mounts(made["spec"]["initContainers"][0])


async def test_new_pods_keep_off_nodes_with_a_notice(world: WebhookWorld) -> None:
    """Also those with terms of their own; where the notice ends they do not."""
    await world.ask(await world.supervisor())
    noticed, spared = await world.node(), await world.node()
    subject = Subject(SubjectKind.NODE, noticed, "its machine")
    told = replace(notice(1), subject=subject, first_seen=time.time(), deadline=time.time() + 300)
    async with world.here.opened() as store:
        await store.put_notice(told.id, lambda _: told)
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [zone]}}}

    async def kept_off() -> bool:
        made = await world.make(pod(), dryRun="All")
        return not allows(terms(made), noticed, {})

    await until(kept_off, "pods keep off the node")
    for made in (await world.make(pod()), await world.make(pod(affinity=required))):
        assert [allows(terms(made), node, {"zone": "a"}) for node in (noticed, spared)] == [False, True]
    bound = await world.make(pod(nodeName=noticed))
    assert terms(bound) is None


async def test_one_that_stands_by_answers_as_well(world: WebhookWorld) -> None:
    """It has no streams and decides nothing, but knows all that pods are given."""
    await world.supervisor()
    await world.ask(await world.supervisor(serving=False))
    assert _shaped(await world.make(pod()))


async def test_the_supervisors_own_ca_reaches_the_api_server_and_the_pods(world: WebhookWorld) -> None:
    """Nobody has to carry it, neither into the configuration nor into the pods."""
    no_files = dict.fromkeys(("tls_cert_file", "tls_key_file", "public_ca_file"), "")
    own: dict[str, Any] = {"keys_secret": SECRET, "tls_names": "127.0.0.1", "webhook_name": WEBHOOK, **no_files}
    await world.ask(await world.supervisor(**own), WEBHOOK, b"")
    made = await world.make(pod())
    secret = await world.api.get(SECRET_PATH)
    assert made["metadata"]["annotations"][f"{PREFIX}ca"] == base64.b64decode(secret["data"]["ca.crt"]).decode()


async def test_pods_are_made_when_the_webhook_is_gone(world: WebhookWorld) -> None:
    replica = await world.supervisor()
    await world.ask(replica)
    await replica.kill()
    assert not _shaped(await world.make(pod()))


async def test_what_is_made_by_hand_is_admitted_and_stays(world: WebhookWorld) -> None:
    by_hand = documented("Pod")
    before = await world.make(by_hand)
    await world.ask(await world.supervisor())
    after = await world.make(by_hand)
    assert volume(before) == volume(after)
    assert set(files(after)) == {"token", "address", "ca.crt", "annotations", "excluded-hosts", "discover_hosts.sh"}
    assert mounts(before["spec"]["containers"][0]) == mounts(after["spec"]["containers"][0])
    assert before["metadata"]["annotations"] == after["metadata"]["annotations"]


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _garbage(_request: web.Request) -> web.Response:
    return web.Response(body=b"\x00garbage")


async def _other(_request: web.Request) -> web.Response:
    return web.json_response({"apiVersion": "v1", "kind": "Pod"})


async def _fails(_request: web.Request) -> web.Response:
    raise web.HTTPInternalServerError


async def _sleeps(_request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


async def _redirects(_request: web.Request) -> web.Response:
    raise web.HTTPFound("https://127.0.0.1:1/elsewhere")


@asynccontextmanager
async def answering(world: WebhookWorld, answer: Answer) -> AsyncIterator[tuple[str, list[str]]]:
    """Another webhook in its place: its address, and a list that grows with each question."""
    asked: list[str] = []

    async def counted(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return await answer(request)

    app = web.Application()
    app.router.add_post(PATH, counted)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    files = Files(world.authority.cert_file, world.authority.key_file)
    context.load_cert_chain(files.certificate, files.key)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("answer", [_garbage, _other, _fails, _sleeps, _redirects])
async def test_pods_are_made_whatever_the_webhook_answers(world: WebhookWorld, answer: Answer) -> None:
    """Or if it does not, within the two seconds that the configuration gives it."""
    async with answering(world, answer) as (where, asked):
        await world.ask_at(where)

        async def made() -> Manifest | None:
            one = await world.make(pod())
            return one if asked else None

        one = await until(made, "the webhook is asked")
        assert one is not None
        assert not _shaped(one)


async def test_a_container_that_another_webhook_adds_is_shaped_as_well(world: WebhookWorld) -> None:
    async def adds(request: web.Request) -> web.Response:
        question = (await request.json())["request"]
        there = [each["name"] for each in question["object"]["spec"]["containers"]]
        more = [] if "added" in there else [{"op": "add", "path": "/spec/containers/-", "value": container("added")}]
        patch = base64.b64encode(json.dumps(more).encode()).decode()
        said = {"uid": question["uid"], "allowed": True, "patchType": "JSONPatch", "patch": patch}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": said})

    async with answering(world, adds) as (where, asked):
        await world.ask(await world.supervisor(), "first")
        await world.ask_at(where, "second")

        async def made() -> Manifest | None:
            one = await world.make(pod())
            return one if asked else None

        one = await until(made, "the other webhook is asked")
        assert one is not None
        main, added = one["spec"]["containers"]
        assert (mounts(main), mounts(added)) == ([_DIRECTORY], [_DIRECTORY])
        assert [each["name"] for each in one["spec"]["volumes"]].count("job-supervisor") == 1
