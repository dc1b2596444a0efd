"""`job-supervisor -M` before a hub of Karmada that proxies to its members, as its API server answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from job_supervisor.cli import members
from job_supervisor.cli.errors import CliExitCode
from supervisor.domain.ids import JobName
from supervisor.jobs.registry import RESOURCES
from supervisor.store.codec import NOTICE_CODEC, job_codec, notice_key
from tests.job_supervisor.cli.cli_running import run, started
from tests.supervisor.decide.decide_builders import notice, running_job

_T0 = 1_767_600_000.0
_CODEC = job_codec("default", lambda: _T0, RESOURCES)
_OURS = "/apis/job-supervisor.kube-ai.io/v1alpha1"
_JOBS, _NOTICES = f"{_OURS}/supervisedjobs", f"{_OURS}/reclaimnotices"
_EVENTS, _PODS = "/apis/events.k8s.io/v1/events", "/api/v1/pods"
_LISTS = (_JOBS, _NOTICES, _EVENTS, _PODS)
_GROUP = "karmada.io"

Lists = dict[str, list[dict[str, Any]]]


def supervised(name: str, namespace: str = "ml") -> dict[str, Any]:
    """A running TrainingJob as its SupervisedJob."""
    job = replace(running_job(), name=JobName(f"{namespace}/trainingjob.{name}"))
    spec, status = _CODEC.encode(job, None, 1)
    return {"metadata": metadata(f"trainingjob.{name}", namespace), "spec": spec, "status": status}


def noticed(node: int) -> dict[str, Any]:
    """A notice about node n1, n2 and so on."""
    value = notice(node, left=3600)
    spec, status = NOTICE_CODEC.encode(value, None, 1)
    return {"metadata": {**metadata(notice_key(value.id, 1).name), "namespace": ""}, "spec": spec, "status": status}


def event(name: str, note: str) -> dict[str, Any]:
    """A decision about a job as the supervisor's Event."""
    regarding = {"kind": "SupervisedJob", "name": f"trainingjob.{name}", "namespace": "ml"}
    said = {"note": note, "reason": "Shrinking", "reportingController": "job-supervisor.kube-ai.io/supervisor"}
    at = "2026-01-05T08:00:01.000000Z"
    return {"metadata": metadata(f"e-{name}"), "eventTime": at, "regarding": regarding, **said}


def binding(name: str, kind: str = "PyTorchJob", **spec: Any) -> dict[str, Any]:
    """A ResourceBinding of the hub that a queue holds back."""
    resource = {"apiVersion": "kubeflow.org/v1", "kind": kind, "namespace": "ml", "name": name}
    held = {"resource": resource, "replicas": 4, "suspension": {"scheduling": True}}
    return {"metadata": metadata(f"{name}-{kind.lower()}"), "spec": {**held, **spec}}


def metadata(name: str, namespace: str = "ml") -> dict[str, str]:
    created = "2026-01-05T08:00:00Z"
    return {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": created,
    }


def lists(*jobs: dict[str, Any], **others: list[dict[str, Any]]) -> Lists:
    """The lists of a member."""
    found: Lists = {path: [] for path in _LISTS}
    return {**found, _JOBS: list(jobs), _NOTICES: others.get("notices", []), _EVENTS: others.get("events", [])}


@dataclass
class Hub:
    """A hub with members by name: their lists, a status with which the proxy refuses, or None if it never answers."""

    members: Mapping[str, Lists | int | None]
    bindings: list[dict[str, Any]] = field(default_factory=list)
    group: str = _GROUP
    refused: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    most: int = 0
    _now: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.raw_path.partition("?")[0])
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(0)
            return await self._answered(request.path)
        finally:
            self._now -= 1

    async def _answered(self, path: str) -> web.Response:
        base = f"/apis/cluster.{self.group}/v1alpha1"
        if path in self.refused:
            return _refusal(403)
        if path == "/apis":
            groups = ("apps", "cluster.x-k8s.io", f"cluster.{self.group}", f"work.{self.group}")
            found = [{"name": name, "preferredVersion": {"version": "v1alpha1"}} for name in groups]
            return web.json_response({"groups": found})
        if path == "/apis/cluster.x-k8s.io/v1alpha1":
            return web.json_response({"resources": [{"name": "clusters"}]})
        if path == base:
            return web.json_response({"resources": [{"name": "clusters"}, {"name": "clusters/proxy"}]})
        if path == f"{base}/clusters":
            return _listed([{"metadata": metadata(name, "")} for name in self.members])
        if path == f"/apis/work.{self.group}/v1alpha2/resourcebindings":
            return _listed(self.bindings)
        name, _, below = path.removeprefix(f"{base}/clusters/").partition("/proxy")
        member = self.members.get(name) if path.startswith(f"{base}/clusters/") else 404
        if member is None:
            await asyncio.Event().wait()
        if isinstance(member, int):
            return _refusal(member)
        return _listed(member[below]) if member is not None and below in member else _refusal(404)


def _refusal(status: int) -> web.Response:
    return web.json_response({"message": f"refused with {status}"}, status=status)


def _listed(items: list[dict[str, Any]]) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})


@asynccontextmanager
async def serving(hub: Hub, directory: Path) -> AsyncIterator[str]:
    """The path of a kubeconfig of the hub."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hub.answer)
    async with TestServer(application) as server:
        named = [{"name": "c", "cluster": {"server": str(server.make_url("")).rstrip("/")}}]
        contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
        config = {"clusters": named, "contexts": contexts, "users": [{"name": "u", "user": {}}], "current-context": "c"}
        file = directory / "hub.kubeconfig"
        file.write_text(json.dumps(config))
        yield str(file)


@pytest.fixture
def hub() -> Hub:
    """A hub with two members, which run jobs of the same name on nodes of the same names, and a broken one."""
    first = lists(supervised("bert"), supervised("vgg"), notices=[noticed(1)], events=[event("bert", "It shrinks.")])
    return Hub({"m1": first, "m2": lists(supervised("bert")), "m3": 503}, [binding("held")])


async def test_the_jobs_of_all_members_are_one_table(hub: Hub, tmp_path: Path) -> None:
    """A member that fails is named, and the jobs that the hub holds back are queued in no cluster."""
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == CliExitCode.DONE
    rows = [line.split()[:4] for line in shown.out.splitlines()]
    assert rows[0] == ["CLUSTER", "NAMESPACE", "JOB", "PHASE"]
    assert rows[1:5] == [
        ["m1", "ml", "trainingjob.bert", "Running"],
        ["m1", "ml", "trainingjob.vgg", "Running"],
        ["m2", "ml", "trainingjob.bert", "Running"],
        ["-", "ml", "pytorchjob.held", "Queued"],
    ]
    assert "The hub holds it back: ResourceBinding held-pytorchjob has spec.suspension.scheduling." in shown.out
    assert "m1       node/n1" in shown.out
    assert "Not visible: cluster m3: The API server does not answer: refused with 503." in shown.out
    assert shown.out.count("which agents and processes are connected") == 1


async def test_programs_get_the_cluster_of_everything(hub: Hub, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as kubeconfig:
        shown = (await run("status", "-M", "-o", "json", "--kubeconfig", kubeconfig)).json
        nodes = (await run("nodes", "-M", "-o", "json", "--kubeconfig", kubeconfig)).json
        past = (await run("history", "-M", "-o", "json", "--kubeconfig", kubeconfig)).json
        alone = (await run("status", "-o", "json", "--kubeconfig", kubeconfig)).out
    assert [(job["cluster"], job["job"]) for job in shown["jobs"]] == [
        ("m1", "ml/trainingjob.bert"),
        ("m1", "ml/trainingjob.vgg"),
        ("m2", "ml/trainingjob.bert"),
        ("-", "ml/pytorchjob.held"),
    ]
    assert [(each["cluster"], each["subject"]) for each in shown["notices"]] == [("m1", "n1")]
    assert any("m3" in sentence for sentence in shown["unseen"])
    assert {("m1", "n1"), ("m2", "n1")} <= {(each["cluster"], each["node"]) for each in nodes["nodes"]}
    assert [each["cluster"] for each in nodes["nodes"] if each["notices"]] == ["m1"]
    assert {(each["cluster"], each["what"]) for each in past["entries"]} >= {("m1", "Shrinking"), ("m2", "Registered")}
    assert "cluster" not in alone


async def test_a_job_is_explained_in_each_cluster_that_has_it(hub: Hub, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as kubeconfig:
        both = await run("explain", "bert", "-M", "--kubeconfig", kubeconfig)
        one = await run("explain", "vgg", "-M", "--kubeconfig", kubeconfig)
        held = await run("explain", "held", "-M", "--kubeconfig", kubeconfig)
        value = (await run("explain", "bert", "-M", "-o", "json", "--kubeconfig", kubeconfig)).json
        nobody = await run("explain", "nobody", "-M", "--kubeconfig", kubeconfig)
    assert both.out.index("In cluster m1:\nml/trainingjob.bert is Running") < both.out.index("In cluster m2:\nml/")
    assert "In cluster m1:" in one.out
    assert "In cluster m2:" not in one.out
    assert held.out.startswith("At the hub:\nml/pytorchjob.held is Queued.")
    assert "Its queue lets it go, and the hub places it in a cluster." in held.out
    assert [each["job"]["cluster"] for each in value["jobs"]] == ["m1", "m2"]
    assert nobody.code == CliExitCode.UNKNOWN
    assert "There is no supervised job nobody." in nobody.err
    assert "Not visible: cluster m3" in nobody.err


async def test_the_history_of_a_job_is_that_of_its_clusters(hub: Hub, tmp_path: Path) -> None:
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("history", "bert", "-M", "--kubeconfig", kubeconfig)
        one = await run("history", "vgg", "-M", "--kubeconfig", kubeconfig)
        nobody = await run("history", "nobody", "-M", "--kubeconfig", kubeconfig)
    heads, *rows = [line.split() for line in shown.out.splitlines()]
    assert heads == ["CLUSTER", "TIME", "SUBJECT", "WHAT", "WHY"]
    assert {row[0] for row in rows if "job/ml/trainingjob.bert" in row} == {"m1", "m2"}
    assert "It shrinks." in shown.out
    assert "It shrinks." not in one.out
    assert nobody.code == CliExitCode.UNKNOWN


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({"clusters": [{"name": "m1"}]}, "PyTorchJob"),
        ({"suspension": {"dispatching": True}}, "PyTorchJob"),
        ({"suspension": None}, "PyTorchJob"),
        ({}, "Deployment"),
    ],
    ids=["placed", "not-dispatched", "unread", "no-job"],
)
async def test_only_jobs_without_a_cluster_are_queued_at_the_hub(
    hub: Hub, tmp_path: Path, spec: dict[str, Any], kind: str
) -> None:
    hub.bindings = [binding("other", kind, **spec)]
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == CliExitCode.DONE
    assert "Queued" not in shown.out
    assert ("ResourceBinding other-pytorchjob: it does not decode." in shown.out) is (spec == {"suspension": None})


async def test_who_may_not_list_bindings_sees_the_members(hub: Hub, tmp_path: Path) -> None:
    hub.refused = {f"/apis/work.{_GROUP}/v1alpha2/resourcebindings"}
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == CliExitCode.DONE
    assert "m2" in shown.out
    assert "jobs that the hub holds back: refused with 403." in shown.out


@pytest.mark.parametrize(("status", "code"), [(403, CliExitCode.DENIED), (503, CliExitCode.UNREACHABLE)])
async def test_it_fails_if_no_member_can_be_read(tmp_path: Path, status: int, code: CliExitCode) -> None:
    async with serving(Hub({"m1": status, "m2": status}), tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == code
    assert "No member of the hub can be read." in shown.err
    assert "cluster m2:" in shown.err


async def test_a_member_that_does_not_answer_holds_up_nobody_for_long(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.members = {**hub.members, "m4": None}
    monkeypatch.setattr(members, "_MEMBER_SECONDS", 3.0)
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert "cluster m4: It has not answered within 3 s." in shown.out
    assert shown.code == CliExitCode.DONE


async def test_members_are_read_at_the_same_time_and_not_all_at_once(tmp_path: Path) -> None:
    hub = Hub({f"m{number}": lists(supervised("bert")) for number in range(40)})
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "-o", "json", "--kubeconfig", kubeconfig)
    assert len(shown.json["jobs"]) == 40
    assert 2 <= hub.most <= members._AT_ONCE


@pytest.mark.parametrize("name", ["..", "m1/../../../api/v1/secrets?x=", "m1%2f..", "M1", "a" * 64, "m1#", ""])
async def test_a_name_that_is_none_of_a_cluster_gets_into_no_url(tmp_path: Path, name: str) -> None:
    hub = Hub({name: lists(), "m1": lists(supervised("bert"))})
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == CliExitCode.DONE
    proxied = {path.partition("/proxy")[0].rpartition("/")[2] for path in hub.asked if "/proxy" in path}
    assert proxied == {"m1"}
    assert "that is no name of a cluster" in shown.out


async def test_a_fork_may_have_another_group(hub: Hub, tmp_path: Path) -> None:
    """It is found by its resource clusters/proxy, which the clusters of the Cluster API do not have."""
    hub.group = "one.alibabacloud.com"
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert "m2" in shown.out
    assert "pytorchjob.held" in shown.out


async def test_a_cluster_that_is_no_hub_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.group = "other"
    hub.refused = set()
    async with serving(replace(hub, group="x-k8s.io"), tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == CliExitCode.USAGE
    assert "This cluster is no hub" in shown.err


async def test_who_may_not_list_clusters_is_told(hub: Hub, tmp_path: Path) -> None:
    hub.refused = {f"/apis/cluster.{_GROUP}/v1alpha1/clusters"}
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "--kubeconfig", kubeconfig)
    assert shown.code == CliExitCode.DENIED
    assert "You may not list clusters at the hub: refused with 403." in shown.err


@pytest.mark.parametrize("option", [("--address", "http://127.0.0.1:1"), ("--data-dir", ".")])
async def test_a_supervisor_has_no_members(option: tuple[str, str]) -> None:
    assert (await run("status", "-M", *option)).code == CliExitCode.USAGE


async def test_each_change_names_its_cluster(hub: Hub, tmp_path: Path) -> None:
    """A member that comes and goes in between is compared with its last status."""
    hub.members = {"m1": lists(supervised("bert")), "m2": lists(supervised("bert"))}
    async with (
        serving(hub, tmp_path) as kubeconfig,
        started("status", "-M", "-w", "--interval", "0.1", "-o", "json", "--kubeconfig", kubeconfig) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        first = [json.loads(await process.stdout.readline()) for _ in range(3)]
        assert [(each["cluster"], each["what"]) for each in first] == [
            ("m1", "Running"),
            ("m2", "Running"),
            ("-", "Queued"),
        ]
        hub.members = {"m1": lists(), "m2": 503}
        gone = json.loads(await process.stdout.readline())
        assert (gone["cluster"], gone["what"]) == ("m1", "forgotten")
        assert b"cluster m2" in await process.stderr.readline()
        hub.members = {"m1": lists(), "m2": lists(supervised("bert"), supervised("vgg"))}
        news = json.loads(await process.stdout.readline())
        assert (news["cluster"], news["subject"]) == ("m2", "job/ml/trainingjob.vgg")


async def test_a_namespace_is_asked_for_in_each_member(hub: Hub, tmp_path: Path) -> None:
    within: Lists = {"/api/v1/namespaces/ml/pods": [], f"{_OURS}/namespaces/ml/supervisedjobs": [supervised("a")]}
    hub.members = {"m1": {**lists(supervised("b", "other")), **within}}
    async with serving(hub, tmp_path) as kubeconfig:
        shown = await run("status", "-M", "-n", "ml", "--kubeconfig", kubeconfig)
    assert shown.out.splitlines()[1].split()[:3] == ["m1", "trainingjob.a", "Running"]
    assert "trainingjob.b" not in shown.out
