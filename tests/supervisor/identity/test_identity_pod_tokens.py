"""Tokens of pods, by the keys that an API server publishes and by its reviews: a scripted one, on loopback."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

from servicekit.clock import Clock
from servicekit.kubernetes.server import ApiServer
from supervisor.domain.ids import Host, JobName
from supervisor.identity import verifiers as published
from supervisor.identity.pod_tokens import PodTokens
from supervisor.identity.tokens import (
    AgentPrincipal,
    AuthenticationUnavailableError,
    Authenticator,
    BadTokenError,
    ForeignPodError,
    Principal,
    ProcessPrincipal,
    Tokens,
    Viewer,
)
from supervisor.identity.verifiers import JwksVerifier, TokenReviewVerifier
from tests.testkit.waiting import until

AUDIENCE = "us"
AGENTS = "system/agent"
ISSUER = "https://cluster"


@dataclass(frozen=True, slots=True)
class Key:
    id: str
    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    algorithm: str = "RS256"

    def shown(self) -> dict[str, Any]:
        public = self.private.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            half = RSAAlgorithm.to_jwk(public, as_dict=True)
        else:
            half = ECAlgorithm.to_jwk(public, as_dict=True)
        return {**half, "kid": self.id, "use": "sig", "alg": self.algorithm}


def an_rsa_key(name: str) -> Key:
    """A new one; the size is the smallest that is not warned of."""
    return Key(name, rsa.generate_private_key(65537, 2048))


FIRST = an_rsa_key("first")
SECOND = Key("second", ec.generate_private_key(ec.SECP256R1()), "ES256")


TRAIN = JobName("space/trainingjob.train")


@dataclass(frozen=True, slots=True)
class FakePod:
    key: tuple[str, str] = ("space", "worker-0")
    account: str = "default"
    node: str = "node1"
    job: JobName | None = TRAIN


@dataclass
class FakePods:
    known: dict[str, FakePod] = field(default_factory=dict)
    synced: bool = True

    def pod(self, uid: str) -> FakePod | None:
        return self.known.get(uid)

    def process(self, uid: str) -> ProcessPrincipal | None:
        pod = self.known[uid]
        return None if pod.job is None else ProcessPrincipal(pod.job, "uid-of-train", None, Host(pod.key[1]))


@dataclass
class ApiServerScript:
    keys: list[Key] = field(default_factory=lambda: [FIRST])
    status: int = 200
    reviews: bool = True
    audience: str = AUDIENCE
    good: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def discover(self, request: web.Request) -> web.Response:
        return self._answer(request, {"issuer": ISSUER})

    async def publish(self, request: web.Request) -> web.Response:
        return self._answer(
            request, {"keys": [{"kty": "oct", "kid": "x", "k": "eA"}, *(key.shown() for key in self.keys)]}
        )

    async def review(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if not self.reviews:
            return self._answer(request, None)
        token = (await request.json())["spec"]["token"]
        user = self.good.get(token)
        status: dict[str, Any] = {"authenticated": user is not None}
        if user is not None:
            status |= {"audiences": [self.audience], "user": user}
        return web.json_response({"status": status}, status=201)

    def _answer(self, request: web.Request, body: Any) -> web.Response:
        self.asked.append(request.path)
        return web.json_response(body if self.status == 200 else {"message": "no"}, status=self.status)


@dataclass
class IdentityScene:
    script: ApiServerScript
    pods: FakePods
    keys: JwksVerifier
    tokens: Tokens
    bearers: Authenticator

    async def authenticate(self, token: str) -> Principal:
        return await self.bearers.authenticate(f"Bearer {token}")

    def count(self, path: str) -> int:
        return self.script.asked.count(path)


KEYS, REVIEWS = "/openid/v1/jwks", "/apis/authentication.k8s.io/v1/tokenreviews"


@asynccontextmanager
async def judging(
    directory: Path, script: ApiServerScript, issuer: str = "", ahead: float = 0.0
) -> AsyncIterator[IdentityScene]:
    """Somebody who has asked nothing yet, and whose clock is so far ahead."""
    clock = Clock()
    clock.move(ahead)
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", script.discover)
    app.router.add_get(KEYS, script.publish)
    app.router.add_post(REVIEWS, script.review)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = await _connected(directory, f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        pods, tokens = FakePods({"uid": FakePod()}), Tokens(b"s" * 64)
        keys = JwksVerifier(server, AUDIENCE, issuer, clock)
        judge = PodTokens(
            published=keys,
            reviews=TokenReviewVerifier(server, AUDIENCE, clock),
            pods=pods,
            process_of=pods.process,
            agent_account=AGENTS,
            clock=clock,
        )
        yield IdentityScene(script, pods, keys, tokens, Authenticator(tokens, judge.authenticate))
    finally:
        await server.close()
        await runner.cleanup()


async def _connected(directory: Path, url: str) -> ApiServer:
    path = directory / "kubeconfig"
    config = {
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    path.write_text(json.dumps(config))
    return await ApiServer.connect(str(path), 2.0)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[IdentityScene]:
    async with judging(tmp_path, ApiServerScript()) as one:
        yield one


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "_RETRY_SECONDS", 0.0)


def signed(key: Key = FIRST, to: Mapping[str, Any] | None = None, **changes: Any) -> str:
    claims = {
        "aud": [AUDIENCE],
        "iss": ISSUER,
        "exp": int(time.time()) + 600,
        "iat": int(time.time()) - 60,
        "kubernetes.io": bound() if to is None else to,
        **changes,
    }
    kept = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(kept, key.private, algorithm=key.algorithm, headers={"kid": key.id})


def bound(
    uid: str = "uid", name: str = "worker-0", namespace: str = "space", account: str = "default"
) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "pod": {"name": name, "uid": uid},
        "serviceaccount": {"name": account, "uid": "a"},
        "node": {"name": "node1", "uid": "n"},
    }


WORKER = ProcessPrincipal(JobName("space/trainingjob.train"), "uid-of-train", None, Host("worker-0"))


async def test_a_pods_token_names_job_and_host_and_an_agents_its_node(scene: IdentityScene) -> None:
    """By the pod that lives, not by what the token says of its node."""
    assert await scene.authenticate(signed()) == WORKER
    scene.pods.known["agent"] = FakePod(key=("system", "a"), account="agent", node="node2", job=None)
    agent = signed(to=bound("agent", "a", "system", "agent"))
    assert await scene.authenticate(agent) == AgentPrincipal(Host("node2"))
    assert scene.count(KEYS) == 1


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_a_token_is_good_by_the_clock_that_follows_the_api_server(tmp_path: Path, ahead: float) -> None:
    """On a machine whose own clock is hours off every agent would be refused."""
    now = int(time.time() + ahead)
    async with judging(tmp_path, ApiServerScript(), ahead=ahead) as scene:
        assert await scene.authenticate(signed(iat=now - 60, nbf=now - 60, exp=now + 600)) == WORKER
        for wrong in (signed(), signed(iat=now - 700, exp=now - 60), signed(iat=now + 600, exp=now + 1200)):
            with pytest.raises(BadTokenError):
                await scene.authenticate(wrong)


async def test_tokens_of_our_own_are_known_without_the_api_server(scene: IdentityScene) -> None:
    """And a header that is no token at all is refused without it."""
    assert await scene.authenticate(scene.tokens.viewer()) == Viewer()
    for header in (None, "", "Basic x", "Bearer ", "Bearer x", "Bearer a.b.c"):
        with pytest.raises(BadTokenError):
            await scene.bearers.authenticate(header)
    assert scene.script.asked == []


def bad_tokens() -> dict[str, str]:
    worker = bound()
    return {
        "for somebody": signed(aud=["somebody"]),
        "for nobody": signed(aud=None),
        "of another issuer": signed(iss="https://elsewhere"),
        "of no issuer": signed(iss=None),
        "expired": signed(exp=int(time.time()) - 60),
        "for ever": signed(exp=None),
        "of later": signed(iat=int(time.time()) + 3600),
        "not yet good": signed(nbf=int(time.time()) + 3600),
        "of nobody": signed(to={}),
        "of no pod": signed(to={**worker, "pod": None}),
        "of a pod without a name": signed(to={**worker, "pod": {"uid": "uid"}}),
        "of a pod by a number": signed(to={**worker, "pod": {"name": 7, "uid": "uid"}}),
        "of a pod by another name": signed(to=bound(name="worker-1")),
        "of another namespace": signed(to=bound(namespace="other")),
        "of another account": signed(to=bound(account="other")),
        "of a pod that is gone": signed(to=bound("gone")),
        "by another key of that id": signed(an_rsa_key("first")),
        "by an unknown key": signed(an_rsa_key("unknown")),
        "by a key without an id": signed(an_rsa_key("")),
        "by another algorithm": signed(Key("first", SECOND.private, "ES256")),
        "by the public half as a secret": by_the_public_half(),
        "by a published secret": jwt.encode({"aud": AUDIENCE}, b"x" * 32, "HS256", {"kid": "secret"}),
        "cut": signed()[:-3],
    }


def by_the_public_half() -> str:
    """Anybody knows it, so it must not be taken for a secret."""
    pem = FIRST.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = jwt.decode(signed(), options={"verify_signature": False})
    said = b".".join(base64url_encode(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "first"}, claims))
    return b".".join((said, base64url_encode(hmac.digest(pem, said, "sha256")))).decode()


async def test_a_bad_token_is_refused(scene: IdentityScene) -> None:
    """For others, by others, of other times, incomplete, or of pods that are not there."""
    bad = bad_tokens()
    found = await asyncio.gather(*map(scene.authenticate, bad.values()), return_exceptions=True)
    assert dict(zip(bad, map(type, found), strict=True)) == dict.fromkeys(bad, BadTokenError)
    assert scene.count(REVIEWS) == 0


async def test_a_pod_of_nobody_is_foreign(scene: IdentityScene) -> None:
    scene.pods.known["uid"] = FakePod(job=None)
    with pytest.raises(ForeignPodError):
        await scene.authenticate(signed())


async def test_a_pod_that_is_not_seen_is_no_bad_token_while_nobody_sees_all(scene: IdentityScene) -> None:
    scene.pods.synced = False
    with pytest.raises(AuthenticationUnavailableError):
        await scene.authenticate(signed(to=bound("new")))
    assert await scene.authenticate(signed()) == WORKER


async def test_a_new_token_is_not_bad_before_its_pod_is_known(scene: IdentityScene) -> None:
    """The watch tells of a pod a moment after the kubelet has its token; afterwards nobody waits for it any more."""
    now = int(time.time())
    with pytest.raises(AuthenticationUnavailableError):
        await scene.authenticate(signed(to=bound("new"), iat=now))
    with pytest.raises(BadTokenError):
        await scene.authenticate(signed(to=bound("new"), iat=now - 11))
    with pytest.raises(BadTokenError):
        await scene.authenticate(signed(to=bound("new"), iat=None))
    scene.pods.known["new"] = FakePod()
    assert await scene.authenticate(signed(to=bound("new"), iat=now)) == WORKER


@pytest.mark.parametrize("iat", ["soon", [], 10**400])
async def test_a_token_of_no_time_is_not_reviewed(tmp_path: Path, iat: object) -> None:
    async with judging(tmp_path, ApiServerScript(status=404)) as one:
        with pytest.raises(BadTokenError):
            await one.authenticate(signed(iat=iat))
        assert one.count(REVIEWS) == 0


@pytest.mark.usefixtures("at_once")
async def test_a_new_key_is_found_and_an_old_one_let_go(scene: IdentityScene) -> None:
    assert await scene.authenticate(signed()) == WORKER
    scene.script.keys = [FIRST, SECOND]
    assert await scene.authenticate(signed(SECOND)) == WORKER
    assert await scene.authenticate(signed()) == WORKER
    scene.script.keys = [SECOND]
    with pytest.raises(BadTokenError):
        await scene.authenticate(signed(an_rsa_key("unknown")))
    with pytest.raises(BadTokenError):
        await scene.authenticate(signed())


async def test_keys_that_nobody_has_cost_few_requests(scene: IdentityScene) -> None:
    """Anybody may name one: a hundred at once are one look, and none for ten seconds after it."""
    unknown = [signed(Key(f"unknown-{number}", SECOND.private, "ES256")) for number in range(100)]
    found = await asyncio.gather(*map(scene.authenticate, unknown), return_exceptions=True)
    assert {type(each) for each in found} == {BadTokenError}
    assert scene.count(KEYS) == 1
    assert await scene.authenticate(signed()) == WORKER


@pytest.mark.usefixtures("at_once")
async def test_known_keys_are_enough_while_the_api_server_is_away(scene: IdentityScene) -> None:
    assert await scene.authenticate(signed()) == WORKER
    scene.script.status = 503
    with pytest.raises(AuthenticationUnavailableError):
        await scene.authenticate(signed(SECOND))
    assert await scene.authenticate(signed()) == WORKER
    scene.script.status, scene.script.keys = 200, [SECOND]
    assert await scene.authenticate(signed(SECOND)) == WORKER


async def test_the_keys_are_there_before_anybody_asks(scene: IdentityScene) -> None:
    task = asyncio.create_task(scene.keys.run())
    try:
        await until(lambda: scene.count(KEYS))
        assert await scene.authenticate(signed()) == WORKER
        assert scene.count(KEYS) == 1
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_issuer_that_is_given_is_not_asked_for(tmp_path: Path) -> None:
    async with judging(tmp_path, ApiServerScript(), issuer="https://given") as one:
        assert await one.authenticate(signed(iss="https://given")) == WORKER
        with pytest.raises(BadTokenError):
            await one.authenticate(signed())
        assert set(one.script.asked) == {KEYS}


@pytest.mark.parametrize("status", [403, 404])
async def test_where_no_keys_are_published_each_token_is_reviewed_once(tmp_path: Path, status: int) -> None:
    good, bad = signed(), signed(SECOND)
    extra = {"authentication.kubernetes.io/pod-name": ["worker-0"], "authentication.kubernetes.io/pod-uid": ["uid"]}
    user = {"username": "system:serviceaccount:space:default", "extra": extra}
    people = {
        signed(sub=name): {**user, "username": name} for name in ("admin", "system:node:n", "nobody:else:space:default")
    }
    no_pod = signed(sub="no pod")
    script = ApiServerScript(status=status, good={good: user, **people, no_pod: {**user, "extra": {}}})
    async with judging(tmp_path, script) as one:
        for _ in range(3):
            assert await one.authenticate(good) == WORKER
            for token in (bad, no_pod, *people):
                with pytest.raises(BadTokenError):
                    await one.authenticate(token)
        assert one.count(REVIEWS) == 3 + len(people)
        for token in (signed(aud=["somebody"]), signed(exp=int(time.time()) - 60), signed(exp=None)):
            with pytest.raises(BadTokenError):
                await one.authenticate(token)
        assert one.count(REVIEWS) == 3 + len(people)


async def test_a_review_for_others_or_of_no_pod_is_worth_nothing(tmp_path: Path) -> None:
    """An API server that knows no audiences answers for its own; a token of no pod is no pod's that is not seen yet."""
    user = {"username": "system:serviceaccount:space:default"}
    extra = {"authentication.kubernetes.io/pod-name": ["worker-0"], "authentication.kubernetes.io/pod-uid": ["uid"]}
    token = signed()
    for script in (
        ApiServerScript(status=404, audience="https://cluster", good={token: {**user, "extra": extra}}),
        ApiServerScript(status=404, good={token: user}),
    ):
        async with judging(tmp_path, script) as one:
            one.pods.synced = False
            with pytest.raises(BadTokenError):
                await one.authenticate(token)
            assert one.count(REVIEWS) == 1


async def test_a_token_that_nobody_can_review_is_not_bad(tmp_path: Path) -> None:
    async with judging(tmp_path, ApiServerScript(status=403, reviews=False)) as one:
        with pytest.raises(AuthenticationUnavailableError):
            await one.authenticate(signed())
