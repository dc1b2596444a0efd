"""The cost of the webhook for a new pod: the answer alone, and with HTTPS on a new connection."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.results import Row, ScenarioOutcome, Unit, figures
from benchmarks.summary import summarize
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.tls import Files, ServerCertificate
from simulator.certificates import SimulatedAuthority
from supervisor.refusals import Refusals
from supervisor.webhook.mutation import MAX_NODES, AvoidedNodes, PodInjection
from supervisor.webhook.server import PATH, AdmissionReview, Webhook, answer, review_mutation

METHOD = """\
The webhook's own server and code, and a client in the same process on the same loop. The client opens a connection per
pod, as an API server does, sends the review and reads the whole answer; its own work is included. *Answer* is from the
review's bytes to those of the answer. A worker with twenty variables and a launcher, without a notice and with as many
noticed nodes as one pod names."""

_PODS = 500
_SHORT_PODS = 20
_OPTED_IN = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}

Manifest = Mapping[str, object]


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    authority = SimulatedAuthority(root / "tls")
    ca = authority.ca_pem.decode()
    calm = PodInjection(address="https://supervisor.test:8471", ca=ca, audience="job-supervisor.kube-ai.io")
    storm = replace(calm, avoid=AvoidedNodes([f"ecs-gpu-node-{number:05}" for number in range(MAX_NODES)]))
    cases = (
        ("worker", _pod("worker"), calm),
        (f"worker, {MAX_NODES} nodes noticed", _pod("worker"), storm),
        ("launcher", _pod("launcher"), calm),
    )
    pods = _SHORT_PODS if short else _PODS
    rows = [await _row(case, _review(made), injection, authority, pods) for case, made, injection in cases]
    return ScenarioOutcome(scenario="webhook", title="New pods", method=METHOD, rows=tuple(rows))


async def _row(case: str, review: bytes, injection: PodInjection, authority: SimulatedAuthority, pods: int) -> Row:
    alone = [_timed(lambda: _answered(review, injection)) for _ in range(pods)]
    asked = await _asked(review, injection, authority, pods)
    return Row(
        case=case,
        figures=(
            *figures("answer", summarize(alone), Unit.SECONDS),
            *figures("asked by HTTPS", summarize(asked), Unit.SECONDS),
        ),
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _answered(review: bytes, injection: PodInjection) -> bytes:
    read = msgspec.json.decode(review, type=AdmissionReview)
    return answer(read.request.uid, review_mutation(read.request, injection))


async def _asked(review: bytes, injection: PodInjection, authority: SimulatedAuthority, pods: int) -> Iterable[float]:
    webhook = Webhook(
        bulkhead=Bulkhead(Clock()),
        address=Address("127.0.0.1", 0),
        certificate=ServerCertificate(Files(authority.cert_file, authority.key_file), 60.0, Clock()),
        refusals=Refusals(),
        injection=lambda: injection,
    )
    trusted = ssl.create_default_context(cadata=authority.ca_pem.decode())
    head = f"POST {PATH} HTTP/1.1\r\nHost: webhook\r\nContent-Length: {len(review)}\r\n\r\n".encode()
    async with webhook.serving() as address:
        return [await _ask(address, trusted, head + review) for _ in range(pods)]


async def _ask(address: Address, trusted: ssl.SSLContext, request: bytes) -> float:
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=trusted)
    writer.write(request)
    answer = await reader.read()
    took = time.perf_counter() - begun
    writer.close()
    if b'"JSONPatch"' not in answer:
        raise RuntimeError(f"the pod was not changed: {answer!r}")
    return took


def _pod(role: str) -> Manifest:
    edl = {"name": "training-job-hostfile", "mountPath": "/etc/edl"}
    container = {
        "name": "et",
        "image": "training",
        "env": [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(20)],
        "volumeMounts": [edl],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": role, "annotations": _OPTED_IN, "labels": {"training-job-role": role}},
        "spec": {"containers": [container], "volumes": [{"name": edl["name"], "emptyDir": {}}]},
    }


def _review(made: Manifest) -> bytes:
    request = {"uid": "review", "kind": {"group": "", "version": "v1", "kind": "Pod"}}
    body = {**request, "operation": "CREATE", "object": made}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body})
