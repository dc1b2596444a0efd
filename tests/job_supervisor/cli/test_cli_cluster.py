"""`job-supervisor` and its plugin of kubectl before an API server that answers as a real one."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from supervisor.check.job import CheckedKind
from supervisor.domain.ids import JobName
from supervisor.jobs.registry import RESOURCES
from supervisor.store.codec import job_codec
from tests.job_supervisor.cli.cli_running import Said, environment, run
from tests.supervisor.check.check_manifests import GOOD, changed
from tests.supervisor.decide.decide_builders import running_job
from tests.testkit.controlplane.binaries import BinaryNotBuilt, Tool, client_path

_OURS = "/apis/job-supervisor.kube-ai.io/v1alpha1"
_EVENTS, _CORE_EVENTS = "/apis/events.k8s.io/v1/events", "/api/v1/events"
_T0 = 1_767_600_000.0
_CODEC = job_codec("default", lambda: _T0, RESOURCES)


def _supervised(name: str) -> dict[str, Any]:
    job = replace(running_job(), name=JobName(f"ml/trainingjob.{name}"))
    spec, status = _CODEC.encode(job, None, 1)
    return {"metadata": _metadata(f"trainingjob.{name}"), "spec": spec, "status": status}


def _metadata(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": "1"}


def _event(kind: str, reporter: str = "job-supervisor.kube-ai.io/supervisor") -> dict[str, Any]:
    name = "trainingjob.resnet" if kind == "SupervisedJob" else "resnet"
    regarding = {"kind": kind, "name": name, "namespace": "ml"}
    named = {"regarding": regarding, "note": "n1 will be reclaimed.", "reportingController": reporter}
    return {"metadata": _metadata("e"), "eventTime": "2026-01-05T08:00:01.000000Z", "reason": "Shrinking", **named}


def _core(event: Mapping[str, Any]) -> dict[str, Any]:
    """The same Event under the names of the older API."""
    names = {"regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent"}
    return {names.get(name, name): value for name, value in event.items()}


@dataclass
class _Cluster:
    """Lists by path; what is missing is a 404, and what is in `refused` a 403."""

    lists: dict[str, list[dict[str, Any]]]
    refused: set[str] = field(default_factory=set)
    selectors: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if request.path in self.refused:
            return web.json_response({"message": "forbidden: you may not"}, status=403)
        if request.path not in self.lists:
            return web.json_response({"message": "the server could not find the requested resource"}, status=404)
        items = self.lists[request.path]
        if "labelSelector" in request.query:
            self.selectors.append(request.query["labelSelector"])
            items = [each for each in items if each["metadata"]["name"] == "resnet"]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})


@dataclass
class _Answering(_Cluster):
    """Also with single objects, by path."""

    objects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        if request.path in self.objects:
            return web.json_response(self.objects[request.path])
        return await super().answer(request)


@asynccontextmanager
async def _served(cluster: _Cluster, directory: Path) -> AsyncIterator[Path]:
    """Serves it, and yields a kubeconfig with the contexts `here` and `nowhere`, of which none is current."""
    app = web.Application()
    app.router.add_get("/{any:.*}", cluster.answer)
    async with TestServer(app) as server:
        clusters = {"here": str(server.make_url("")).rstrip("/"), "nowhere": "http://127.0.0.1:1"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": url}} for name, url in clusters.items()],
            "users": [{"name": "me", "user": {"token": "any"}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in clusters],
        }
        file = directory / "kubeconfig"
        file.write_text(json.dumps(config))
        yield file


def _cluster(**more: Any) -> _Cluster:
    lists = {
        f"{_OURS}/supervisedjobs": [_supervised("resnet"), _supervised("bert")],
        f"{_OURS}/reclaimnotices": [],
        "/api/v1/pods": [],
        "/apis/kai.alibabacloud.com/v1alpha1/trainingjobs": [
            {"metadata": _metadata(name)} for name in ("resnet", "bert")
        ],
        _EVENTS: [_event("SupervisedJob"), _event("TrainingJob"), _event("SupervisedJob", "somebody-else")],
    }
    return _Cluster({**lists, **more})


async def test_jobs_are_chosen_by_the_labels_of_their_objects(tmp_path: Path) -> None:
    """Of all kinds that the cluster has: here, it has no MPIJobs."""
    cluster = _cluster()
    async with _served(cluster, tmp_path) as kubeconfig:
        where = ("--kubeconfig", kubeconfig, "--context", "here")
        everything = await run("status", *where, "-o", "name")
        assert everything.out.split() == ["job/ml/trainingjob.resnet", "job/ml/trainingjob.bert"], everything.err
        chosen = await run("status", *where, "-o", "name", "-l", "team=vision,tier!=x")
        assert (chosen.code, chosen.out) == (0, "job/ml/trainingjob.resnet\n")
        assert set(cluster.selectors) == {"team=vision,tier!=x"}
        table = await run("status", *where, "-A")
        assert [row.split()[:2] for row in table.out.splitlines()[:2]] == [
            ["NAMESPACE", "JOB"],
            ["ml", "trainingjob.bert"],
        ]


async def test_a_context_is_chosen_by_its_name(tmp_path: Path) -> None:
    async with _served(_cluster(), tmp_path) as kubeconfig:
        none = await run("status", KUBECONFIG=str(kubeconfig))
        assert (none.code, "has no current context" in none.err) == (78, True)
        assert (await run("status", "--context", "here", KUBECONFIG=str(kubeconfig))).code == 0
        other = await run("status", "--context", "nowhere", KUBECONFIG=str(kubeconfig))
        assert (other.code, "cannot connect to http://127.0.0.1:1" in other.err) == (69, True), other.err


@pytest.mark.parametrize("refused", [set(), {_EVENTS}])
async def test_decisions_are_read_from_the_supervisors_events(tmp_path: Path, refused: set[str]) -> None:
    """Also by somebody who may list the core Events alone; the Events about other objects repeat them."""
    cluster = _cluster(**{_CORE_EVENTS: [_core(_event("SupervisedJob")), _core(_event("Pod"))]})
    cluster.refused.update(refused)
    async with _served(cluster, tmp_path) as kubeconfig:
        said = await run("history", "--kubeconfig", kubeconfig, "--context", "here", "-o", "json")
    assert said.code == 0, said.err
    told = [entry for entry in said.json["entries"] if entry["what"] == "Shrinking"]
    text = "n1 will be reclaimed."
    assert told == [
        {
            "at": 1_767_600_001.0,
            "subject": "job/ml/trainingjob.resnet",
            "what": "Shrinking",
            "text": text,
            "jobs": ["ml/trainingjob.resnet"],
            "run": 0,
            "concerns": [],
            "source": "",
            "drill": False,
        }
    ]
    assert "read from Kubernetes Events" in said.json["horizon"][0]


async def test_events_that_may_not_be_read_are_said_to_be_missing(tmp_path: Path) -> None:
    cluster = _cluster()
    cluster.refused.update({_EVENTS, _CORE_EVENTS})
    async with _served(cluster, tmp_path) as kubeconfig:
        said = await run("history", "--kubeconfig", kubeconfig, "--context", "here")
    assert said.code == 0, said.err
    assert "Not visible: decisions before the present ones: you may not list Events." in said.out


async def _as_plugin(home: Path, kubeconfig: Path, *arguments: str) -> Said:
    try:
        kubectl = client_path(Tool.KUBECTL)
    except BinaryNotBuilt as error:
        pytest.skip(str(error))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        kubectl,
        "job-supervisor",
        *arguments,
        cwd=home,
        env=environment({"HOME": str(home), "KUBECONFIG": str(kubeconfig), "PATH": path}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Said(process.returncode or 0, out.decode(), err.decode())


async def test_the_real_kubectl_finds_its_plugin_which_asks_the_cluster(tmp_path: Path) -> None:
    """Even beside the data of a stand-alone supervisor, which the command itself would ask."""
    (tmp_path / "job-supervisor-data").mkdir()
    (tmp_path / "job-supervisor-data" / "endpoints.json").write_text('{"http": "http://127.0.0.1:1"}')
    async with _served(_cluster(), tmp_path) as kubeconfig:
        said = await _as_plugin(tmp_path, kubeconfig, "status", "--context", "here", "-o", "name", "-n", "ml")
        assert said.code == 69, "no such namespaced list is served"
        said = await _as_plugin(tmp_path, kubeconfig, "status", "--context", "here", "-o", "name")
        assert (said.code, len(said.out.split())) == (0, 2), said.err
        bare = await _as_plugin(tmp_path, kubeconfig, "status")
        assert (bare.code, "has no current context" in bare.err) == (78, True), bare.err
        wrong = await _as_plugin(tmp_path, kubeconfig, "statsu")
        assert (wrong.code, wrong.err.splitlines()[0]) == (
            64,
            "kubectl job-supervisor: unknown command 'statsu'. Did you mean 'status'?",
        )


async def test_a_live_job_is_checked_as_the_cluster_has_it(tmp_path: Path) -> None:
    """By its kind and name, or as a supervised job."""
    object_path = "/apis/kai.alibabacloud.com/v1alpha1/namespaces/ml/trainingjobs/resnet"
    job = {"apiVersion": "kai.alibabacloud.com/v1alpha1", "kind": "TrainingJob", "metadata": _metadata("resnet")}
    async with _served(_Answering(_cluster().lists, objects={object_path: job}), tmp_path) as kubeconfig:
        where = ("--kubeconfig", kubeconfig, "--context", "here")
        for target in ("trainingjob/resnet", "resnet", "job/ml/trainingjob.resnet"):
            namespace = () if target == "resnet" or "ml" in target else ("-n", "ml")
            said = await run("check", target, *where, *namespace)
            assert (said.code, "TrainingJob ml/resnet (the cluster): error not-opted-in" in said.out) == (65, True), (
                said
            )
        missing = await run("check", "mpijobs/none", *where, "-n", "ml")
        assert (missing.code, "There is no MPIJob none in the namespace ml." in missing.err) == (66, True), missing


async def test_a_live_train_job_is_checked_with_its_runtime(tmp_path: Path) -> None:
    bad = changed(GOOD[CheckedKind.TRAIN_JOB](), "items.0.spec.template.spec.failurePolicy", None)
    runtime, job = ({**each, "metadata": {**_metadata("a"), **each["metadata"]}} for each in bad["items"])
    objects = {
        "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/resnet": job,
        "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes/torch": runtime,
    }
    async with _served(_Answering(_cluster().lists, objects=objects), tmp_path) as kubeconfig:
        said = await run(
            "check", "trainjob/resnet", "-n", "training", "-o", "name", "--kubeconfig", kubeconfig, "--context", "here"
        )
    assert (said.out, said.err) == ("failure-is-final\n", "")


async def test_the_node_of_a_host_is_that_of_the_jobs_own_pod(tmp_path: Path) -> None:
    """Another job of the namespace may have a host of the same name."""
    running, version = {"phase": "Running"}, "kai.alibabacloud.com/v1alpha1"
    pods = [
        {
            "metadata": {
                **_metadata(f"n1-{job}"),
                "generateName": "n1-",
                "ownerReferences": [
                    {"apiVersion": version, "kind": "TrainingJob", "name": job, "uid": job, "controller": True}
                ],
            },
            "spec": {"nodeName": f"node-of-{job}", "hostname": "n1"},
            "status": running,
        }
        for job in ("resnet", "bert")
    ]
    async with _served(_cluster(**{"/api/v1/pods": pods}), tmp_path) as kubeconfig:
        said = await run("status", "--kubeconfig", kubeconfig, "--context", "here", "-o", "json")
    assert said.code == 0, said.err
    nodes = {job["job"]: job["host_states"][0]["node"] for job in said.json["jobs"]}
    assert nodes == {f"ml/trainingjob.{job}": f"node-of-{job}" for job in ("resnet", "bert")}
