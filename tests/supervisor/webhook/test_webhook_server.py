"""The webhook's server: whatever it is asked, pods are made."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import jsonpatch
import pytest

from simulator.certificates import SimulatedAuthority
from supervisor.refusals import Code, Wire
from supervisor.webhook.server import PATH
from tests.supervisor.webhook.webhook_pods import OPTED_IN, patched, pod, review
from tests.supervisor.webhook.webhook_serving import Asking, asking


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asking]:
    async with asking(SimulatedAuthority(tmp_path / "tls")) as server:
        yield server


async def test_a_pod_is_answered_with_its_patch(asked: Asking) -> None:
    made, question = pod(), review(pod())
    answer = await asked.ask(question)
    assert answer.status == 200
    assert answer.response["uid"] == question["request"]["uid"]
    assert answer.response["allowed"] is True
    assert answer.response["patchType"] == "JSONPatch"
    assert jsonpatch.apply_patch(made, answer.patch) == patched(made)
    assert not asked.refusals.counts


async def test_no_answer_names_versions(asked: Asking) -> None:
    async with asked.session.get(asked.url) as answer:
        assert answer.headers["Server"] == "job-supervisor"


async def test_what_is_not_ours_is_allowed_without_a_word(asked: Asking) -> None:
    answer = await asked.ask(review(pod(annotations={})))
    assert answer.response == {"uid": answer.response["uid"], "allowed": True}


@pytest.mark.parametrize(
    "made",
    [None, [], "pod", {"metadata": {"annotations": OPTED_IN}, "spec": {"containers": 7}}, {"spec": {"volumes": [{}]}}],
)
async def test_a_pod_that_is_not_understood_is_allowed(asked: Asking, made: object) -> None:
    answer = await asked.ask(review(made))
    assert (answer.status, answer.response["allowed"], answer.patch) == (200, True, [])
    (warning,) = answer.response["warnings"]
    assert warning.startswith("job-supervisor: the pod is not changed: ")
    assert len(warning) <= 120
    assert asked.refusals.counts == {(Wire.WEBHOOK, Code.MALFORMED): 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        json.dumps({**review(pod()), "kind": "Pod"}).encode(),
        json.dumps({**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
    ],
    ids=["nothing", "garbage", "no text", "deep", "empty", "other kind", "other version"],
)
async def test_what_is_no_review_is_refused_and_counted(asked: Asking, body: bytes) -> None:
    answer = await asked.send(body)
    assert (answer.status, answer.response["error"]) == (400, "malformed")
    assert asked.refusals.counts == {(Wire.WEBHOOK, Code.MALFORMED): 1}


async def test_a_body_without_end_is_refused(asked: Asking) -> None:
    answer = await asked.send(b" " * (4 * 1024 * 1024 + 1))
    assert (answer.status, answer.response["error"]) == (413, "oversized")
    assert asked.refusals.counts == {(Wire.WEBHOOK, Code.OVERSIZED): 1}


async def test_a_peer_that_says_nothing_is_dropped(asked: Asking, tmp_path: Path) -> None:
    """As soon as no API server would wait any longer; others are answered meanwhile."""
    trusted = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
    address = asked.address
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=trusted)
    assert (await asked.ask(review(pod()))).patch
    with suppress(ConnectionResetError):
        assert not await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert asked.refusals.counts == {(Wire.WEBHOOK, Code.TOO_SLOW): 1}


@pytest.mark.parametrize("last", [b"", b"no TLS"], ids=["goes", "breaks TLS"])
async def test_a_peer_that_goes_in_the_middle_of_a_review_is_no_fault(
    asked: Asking, tmp_path: Path, last: bytes
) -> None:
    trusted = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
    host, port = asked.address.host, asked.address.port
    head = f"POST {PATH} HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    with (
        socket.create_connection((host, port)) as plain,
        plain.dup() as wire,
        await asyncio.to_thread(trusted.wrap_socket, plain, server_hostname=host) as peer,
    ):
        peer.sendall(head.encode())
        assert await asyncio.to_thread(peer.recv, 1024)  # It begins to read the body.
        wire.sendall(last)
    assert (await asked.ask(review(pod()))).patch
    assert not asked.refusals.counts


async def test_every_pod_has_a_connection_of_its_own(asked: Asking) -> None:
    """One that is kept leads to a replica that may have gone when the next pod is made."""
    async with asked.session.post(asked.url, data=json.dumps(review(pod()))) as answer:
        assert answer.headers["Connection"] == "close"
