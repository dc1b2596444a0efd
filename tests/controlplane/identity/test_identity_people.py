"""Users of a real cluster sign in to the status page, and do there what the cluster lets them do."""

import base64
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import jwt
import pytest

from supervisor.jobs.registry import KINDS
from tests.controlplane.identity.identity_world import RunningIdentity, supervising
from tests.supervisor.observability.page.page_world import PageAnswer, get, post, sign_in
from tests.testkit.controlplane.api import Manifest, ObjectMissing
from tests.testkit.controlplane.credentials import write_kubeconfig
from tests.testkit.controlplane.installed import CLUSTER_RULES, OWN_RULES, SIGN_IN_RULES, InstalledPlace, job_rules
from tests.testkit.controlplane.namespace import Namespace

READ: Manifest = {"apiGroups": ["job-supervisor.kube-ai.io"], "resources": ["supervisedjobs"], "verbs": ["list"]}
PATCH_NODES: Manifest = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}
PATCH_JOBS: Manifest = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["patch"]}
CREATE_EVENTS: Manifest = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}
_OURS = "job-supervisor.kube-ai.io"
_NODE = "/api/v1/nodes/gpu-1"
_RS256 = base64.urlsafe_b64encode(b'{"alg":"RS256","typ":"JWT"}').decode().rstrip("=")
"""The head of a token that is not the supervisor's own."""


@dataclass(frozen=True, slots=True)
class PeopleScene:
    """A supervisor with the page, a namespace with a Job, a node, and people."""

    place: InstalledPlace
    namespace: Namespace
    running: RunningIdentity

    @property
    def job(self) -> str:
        return f"{self.namespace.name}/batchjob.train"

    @property
    def job_path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace.name}/jobs/train"

    def user(self, name: str) -> str:
        return f"system:serviceaccount:{self.namespace.name}:{name}"

    async def person(self, name: str, *cluster: Manifest, here: Manifest | None = None) -> str:
        """Somebody with these rights; returns a token."""
        await self.namespace.account(name, [] if here is None else [here], cluster)
        return await self.namespace.token(name)

    async def session(self, token: str) -> str:
        answer = await sign_in(self.running.peers, token)
        assert answer.cookie is not None, answer.seen
        return SimpleCookie(answer.cookie)["job_supervisor_viewer"].value

    async def asks(self, cookie: str, action: str, given: Mapping[str, str]) -> PageAnswer:
        """Takes the form of another subject, as one that may not be asked for has none, and sends it."""
        shown = await get(self.running.peers, f"/status/actions/{action}", cookie=cookie)
        token = re.search(r'name="form" value="([^"]+)"', shown.text)
        assert token is not None, shown.seen
        data = {"form": token[1], **given}
        return await post(self.running.peers, f"/status/actions/{action}", cookie=cookie, data=data)

    async def annotations(self, path: str) -> dict[str, str]:
        found: Any = await self.place.api.get(path)
        kept = found["metadata"].get("annotations", {})
        return {name.removeprefix(f"{_OURS}/"): text for name, text in kept.items() if name.startswith(_OURS)}


@pytest.fixture(name="people")
async def _people(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[PeopleScene]:
    cluster = here.plane.cluster
    namespace = Namespace(cluster, here.api)
    await here.api.create("/api/v1/namespaces", {"metadata": {"name": namespace.name}})
    rules = (*CLUSTER_RULES, *job_rules(KINDS), *OWN_RULES, *SIGN_IN_RULES)
    await namespace.account("supervisor", cluster_rules=rules)
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, cluster.url, cluster.ca, await namespace.token("supervisor"), "default")
    await here.api.create("/api/v1/nodes", {"metadata": {"name": "gpu-1"}})
    pod = {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never"}
    job = {"metadata": {"name": "train"}, "spec": {"template": {"spec": pod}}}
    await here.api.create(f"/apis/batch/v1/namespaces/{namespace.name}/jobs", job)
    async with supervising(here, tmp_path / "supervisor", kubeconfig, cluster_sign_in=True) as running:
        yield PeopleScene(here, namespace, running)
    with suppress(ObjectMissing):
        await here.api.delete(f"/apis/batch/v1/namespaces/{namespace.name}/jobs/train")


async def test_who_may_list_jobs_sees_the_page_and_does_nothing(people: PeopleScene) -> None:
    cookie = await people.session(await people.person("reader", READ))
    page = await get(people.running.peers, "/", cookie=cookie)
    assert (page.status, people.user("reader") in page.seen) == (200, True)
    for action, given, right in (
        ("suspend", {"job": people.job}, f"patch jobs.batch in the namespace {people.namespace.name}"),
        ("drain", {"node": "gpu-1"}, "patch nodes"),
        ("drill", {"node": "gpu-1"}, "create events.events.k8s.io in the namespace default"),
    ):
        answer = await people.asks(cookie, action, given)
        assert (answer.status, f"{people.user('reader')} may not {right}." in answer.seen) == (403, True)
    assert await people.annotations(people.job_path) == {}
    assert await people.annotations(_NODE) == {}


async def test_who_may_not_list_jobs_is_told_so(people: PeopleScene) -> None:
    answer = await sign_in(people.running.peers, await people.person("stranger"))
    assert (answer.status, answer.cookie) == (403, None)
    assert f"{people.user('stranger')} may not list supervisedjobs.{_OURS}" in answer.seen


async def test_a_token_for_the_supervisor_alone_signs_in_too(people: PeopleScene) -> None:
    """Nobody who sees it can use it at the API server."""
    await people.person("reader", READ)
    token = await people.namespace.token("reader", "job-supervisor.kube-ai.io")
    assert (await sign_in(people.running.peers, token)).status == 303
    foreign = await people.namespace.token("reader", "somebody-else")
    assert (await sign_in(people.running.peers, foreign)).status == 401


async def test_who_may_patch_a_job_suspends_and_resumes_it(people: PeopleScene) -> None:
    """By the annotation that kubectl would write, in the name of the person; rights elsewhere do not count."""
    cookie = await people.session(await people.person("ann", READ, here=PATCH_JOBS))
    asked = {"job": people.job, "reason": "new data"}
    assert (await people.asks(cookie, "suspend", asked)).status == 303
    assert (await people.annotations(people.job_path))["suspend"] == f"{people.user('ann')}: new data"
    assert (await people.asks(cookie, "resume", {"job": people.job})).status == 303
    assert "suspend" not in await people.annotations(people.job_path)
    elsewhere = await people.asks(cookie, "suspend", {"job": "default/batchjob.train"})
    assert (elsewhere.status, "patch jobs.batch in the namespace default" in elsewhere.seen) == (403, True)
    gone = await people.asks(cookie, "stop", {"job": f"{people.namespace.name}/batchjob.other"})
    assert (gone.status, "There is no such object: the job other." in gone.seen) == (404, True)
    record = await get(people.running.peers, "/status/history", cookie=cookie)
    assert f"{people.user('ann')} asked to suspend it on the page: new data." in record.seen


async def test_who_may_patch_nodes_drains_one(people: PeopleScene) -> None:
    cookie = await people.session(await people.person("ann", READ, PATCH_NODES, CREATE_EVENTS))
    assert (await people.asks(cookie, "drain", {"node": "gpu-1", "minutes": "5", "reason": "disk"})).status == 303
    assert (await people.annotations(_NODE))["drain"] == f"{people.user('ann')}: disk"
    assert (await people.place.api.get(_NODE))["spec"]["unschedulable"] is True
    assert (await people.asks(cookie, "undrain", {"node": "gpu-1"})).status == 303
    assert "drain" not in await people.annotations(_NODE)
    assert "unschedulable" not in (await people.place.api.get(_NODE))["spec"]
    assert (await people.asks(cookie, "drill", {"node": "gpu-1", "minutes": "1"})).status == 303
    events = (await people.place.api.get("/apis/events.k8s.io/v1/namespaces/default/events"))["items"]
    (drill,) = [event for event in events if event["reportingController"] == f"{_OURS}/page"]
    assert (drill["regarding"]["name"], people.user("ann") in drill["note"]) == ("gpu-1", True)


async def test_a_proxy_that_passes_tokens_on_signs_people_in(people: PeopleScene) -> None:
    """Then no cookie of ours says who it is, and another site's form still does nothing."""
    token = await people.person("ann", READ, PATCH_NODES)
    peers = people.running.peers
    page = await get(peers, "/status/actions/drain?node=gpu-1", token=token)
    assert (page.status, people.user("ann") in page.seen) == (200, True)
    form = re.search(r'name="form" value="([^"]+)"', page.text)
    assert form is not None
    for value, status in (("", 400), (form[1], 303)):
        data = {"form": value, "node": "gpu-1"}
        answer = await post(peers, "/status/actions/drain", token=token, data=data)
        assert (answer.status, bool(await people.annotations(_NODE))) == (status, status == 303)


async def test_a_right_that_is_taken_away_is_gone_at_once(people: PeopleScene) -> None:
    """The session goes on, and nothing can be done with it."""
    cookie = await people.session(await people.person("ann", READ, PATCH_NODES))
    role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/ann.{people.namespace.name}"
    assert (await people.asks(cookie, "drain", {"node": "gpu-1"})).status == 303
    await people.place.api.delete(role)
    assert (await people.asks(cookie, "undrain", {"node": "gpu-1"})).status == 403
    assert "drain" in await people.annotations(_NODE)


async def test_an_operators_token_of_the_supervisor_changes_no_object_of_the_cluster(people: PeopleScene) -> None:
    """Whoever can read the supervisor's secret has no rights in the cluster by it."""
    cookie = await people.session(people.running.peers.tokens.operator("root"))
    answer = await people.asks(cookie, "stop", {"job": people.job})
    assert (answer.status, "This job is the cluster's" in answer.seen) == (403, True)
    assert (await people.asks(cookie, "drain", {"node": "gpu-1"})).status == 404
    assert await people.annotations(_NODE) == {}


@pytest.mark.parametrize(
    "name", ["../../../default/jobs/victim", "..", "train/status", "train?a", "%2e%2e", "Train", ""]
)
async def test_a_name_that_leads_elsewhere_is_none(people: PeopleScene, name: str) -> None:
    """With rights in one namespace, nobody changes an object of another one through an odd name."""
    cookie = await people.session(await people.person("ann", READ, here=PATCH_JOBS))
    answer = await people.asks(cookie, "stop", {"job": f"{people.namespace.name}/batchjob.{name}"})
    assert (answer.status, "is no name of an object" in answer.seen) == (404, True)
    node = await people.asks(cookie, "drain", {"node": f"gpu-1/{name}"})
    assert node.status == 404


async def test_a_pods_token_for_the_supervisor_is_no_person(people: PeopleScene) -> None:
    """The webhook puts one into each training container, which may do nothing but report with it."""
    await people.person("trainer", READ, PATCH_NODES)
    pod = {
        "metadata": {"name": "worker-0"},
        "spec": {"serviceAccountName": "trainer", "containers": [{"name": "main", "image": "none"}]},
    }
    made: Any = await people.place.api.create(f"{people.namespace.path}/pods", pod)
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": made["metadata"]["uid"]}
    asked = {"audiences": ["job-supervisor.kube-ai.io"], "expirationSeconds": 600, "boundObjectRef": bound}
    path = f"{people.namespace.path}/serviceaccounts/trainer/token"
    token: Any = await people.place.api.create(path, {"spec": asked})
    assert (await sign_in(people.running.peers, token["status"]["token"])).status == 401
    assert (await sign_in(people.running.peers, await people.namespace.token("trainer"))).status == 303


async def test_strangers_keep_nobody_out(people: PeopleScene) -> None:
    """Who sends made-up tokens uses up the reviews of tokens, and not those of the rights of people."""
    cookie = await people.session(await people.person("ann", READ, PATCH_NODES))
    peers = people.running.peers
    made_up = [jwt.encode({"n": number}, "x" * 32) for number in range(70)]
    answers = [await get(peers, "/", token=token.replace(token.partition(".")[0], _RS256)) for token in made_up]
    assert 503 in [each.status for each in answers]
    assert (await people.asks(cookie, "drain", {"node": "gpu-1"})).status == 303


async def test_without_the_setting_nobody_of_the_cluster_signs_in(
    here: InstalledPlace, people: PeopleScene, tmp_path: Path
) -> None:
    token = await people.person("reader", READ)
    async with supervising(here, tmp_path / "other") as running:
        answer = await sign_in(running.peers, token)
    assert answer.status == 401
