"""The webhook mutates new pods."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor.jobs.trainingjob.discovery import DISCOVERY
from supervisor.webhook.mutation import AvoidedNodes
from tests.supervisor.webhook.webhook_pods import (
    AUDIENCE,
    CA,
    GIFTS,
    NEWEST,
    OLDEST,
    OPTED_IN,
    PREFIX,
    Manifest,
    container,
    files,
    launcher,
    mounts,
    operations,
    outcome,
    patched,
    pod,
    valid,
    volume,
)

_AT = {"name": "job-supervisor", "mountPath": "/var/run/kubeai", "readOnly": True}
_SCRIPT = {
    "name": "job-supervisor",
    "mountPath": "/etc/edl/discover_hosts.sh",
    "subPath": "discover_hosts.sh",
    "readOnly": True,
}
_FILES = {
    "token": AUDIENCE,
    "address": f"metadata.annotations['{PREFIX}address']",
    "ca.crt": f"metadata.annotations['{PREFIX}ca']",
    "annotations": "metadata.annotations",
}


def test_an_opted_in_pod_knows_the_supervisor() -> None:
    """Its token, address, CA and annotations lie where the SDK looks, in every container."""
    after = patched(pod(containers=[container(), container("other")]))
    assert files(after) == _FILES
    assert [mounts(each) for each in after["spec"]["containers"]] == [[_AT], [_AT]]
    assert after["metadata"]["annotations"] == {
        **OPTED_IN,
        f"{PREFIX}address": GIFTS.address,
        f"{PREFIX}ca": CA,
    }


def test_the_token_is_renewed_every_hour() -> None:
    given = volume(patched(pod()))
    assert given is not None
    token = {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}
    assert given["projected"]["sources"][0] == {"serviceAccountToken": token}


def test_without_a_ca_the_systems_count() -> None:
    """An empty file would trust nobody."""
    after = patched(pod(), replace(GIFTS, ca=""))
    assert "ca.crt" not in files(after)
    assert f"{PREFIX}ca" not in after["metadata"]["annotations"]


@pytest.mark.parametrize("annotation", ["managed-by-job-supervisor", "spot-instance"])
def test_either_annotation_opts_in(annotation: str) -> None:
    assert outcome(pod(annotations={PREFIX + annotation: "true"})).patch


@pytest.mark.parametrize(
    "annotations",
    [{}, {f"{PREFIX}managed-by-job-supervisor": "false"}, {"managed-by-job-supervisor": "true"}],
)
def test_others_are_left_alone(annotations: dict[str, str]) -> None:
    what = outcome(pod(annotations=annotations), replace(GIFTS, avoid=AvoidedNodes(["n1"])))
    assert (what.patch, what.warnings) == ((), ())


def test_a_pod_without_annotations_is_left_alone() -> None:
    bare = pod()
    del bare["metadata"]["annotations"]
    assert outcome(bare).patch == ()


def test_what_a_kubelet_only_shows_is_left_alone() -> None:
    assert outcome(pod(annotations={**OPTED_IN, "kubernetes.io/config.mirror": "x"})).patch == ()


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "ephemeralcontainers"},
        {"kind": {"group": "batch", "version": "v1", "kind": "Job"}},
    ],
)
def test_only_pods_that_are_made_are_changed(request_: dict[str, Any]) -> None:
    assert outcome(pod(), **request_).patch == ()


def test_what_ends_before_the_others_begin_is_given_nothing() -> None:
    sidecar = container("sidecar", restartPolicy="Always")
    first, second = patched(pod(initContainers=[container("first"), sidecar]))["spec"]["initContainers"]
    assert (mounts(first), mounts(second)) == ([], [_AT])


def test_volumes_and_mounts_that_are_there_stay() -> None:
    own = {"name": "data", "mountPath": "/data"}
    made = pod(containers=[container(volumeMounts=[own])], volumes=[{"name": "data", "emptyDir": {}}])
    after = patched(made)
    assert after["spec"]["containers"][0]["volumeMounts"] == [own, _AT]
    assert after["spec"]["volumes"][0] == {"name": "data", "emptyDir": {}}


@pytest.mark.parametrize("path", ["/var/run/kubeai", "/run/kubeai/", "//var/run/kubeai", "/var/run/kubeai/token"])
def test_a_container_keeps_what_it_mounts_there(path: str) -> None:
    own = container("own", volumeMounts=[{"name": "mine", "mountPath": path}])
    made = pod(containers=[own, container()], volumes=[{"name": "mine", "emptyDir": {}}])
    assert outcome(made).warnings == ["container own keeps its own /var/run/kubeai"]
    assert [mounts(each) for each in patched(made)["spec"]["containers"]] == [[], [_AT]]


@pytest.mark.parametrize("path", ["/var/run", "/run", "/var/run/", "/"])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_container_starts_whatever_it_mounts_above(path: str, *, read_only: bool) -> None:
    above = {"name": "mine", "mountPath": path, "readOnly": read_only}
    made = pod(containers=[container(volumeMounts=[above])], volumes=[{"name": "mine", "emptyDir": {}}])
    assert bool(mounts(patched(made)["spec"]["containers"][0])) is not read_only
    assert bool(outcome(made).warnings) is read_only


def test_a_pod_with_a_volume_of_that_name_keeps_it() -> None:
    what = outcome(pod(volumes=[{"name": "job-supervisor", "emptyDir": {}}]))
    assert (what.patch, what.warnings) == (
        (),
        ["the pod has its own volume job-supervisor, so ours is not added"],
    )


def test_an_address_of_ones_own_stays() -> None:
    own = {**OPTED_IN, f"{PREFIX}address": "https://elsewhere:1", f"{PREFIX}ca": "theirs"}
    assert patched(pod(annotations=own))["metadata"]["annotations"] == own


def test_a_container_that_others_have_added_is_given_it_as_well() -> None:
    after = patched(pod())
    after["spec"]["containers"].append(container("added"))
    assert operations(outcome(after)) == [{"op": "add", "path": "/spec/containers/1/volumeMounts", "value": [_AT]}]


def test_a_launcher_asks_our_script() -> None:
    """It lies over the operator's, may be run, and finds the hosts that are left out beside it."""
    after = patched(launcher())
    et = after["spec"]["containers"][0]
    assert mounts(et) == [_AT, _SCRIPT]
    assert et["volumeMounts"][:2] == launcher()["spec"]["containers"][0]["volumeMounts"]
    assert files(after) == {
        **_FILES,
        "excluded-hosts": f"metadata.annotations['{PREFIX}excluded-hosts']",
        "discover_hosts.sh": f"metadata.annotations['{PREFIX}discovery-script']",
    }
    assert after["metadata"]["annotations"][f"{PREFIX}discovery-script"] == DISCOVERY
    given = volume(after)
    assert given is not None
    modes = {item["path"]: item.get("mode") for item in given["projected"]["sources"][1]["downwardAPI"]["items"]}
    assert modes["discover_hosts.sh"] == 0o555


def test_the_operators_first_container_can_still_copy_its_script() -> None:
    assert patched(launcher())["spec"]["initContainers"] == launcher()["spec"]["initContainers"]


def test_a_worker_has_no_script() -> None:
    worker = launcher()
    worker["metadata"]["labels"]["training-job-role"] = "worker"
    assert files(patched(worker)) == _FILES


_EDL = {"name": "training-job-hostfile", "mountPath": "/etc/edl"}


@pytest.mark.parametrize(
    "et",
    [
        container("et"),
        container("et", volumeMounts=[_EDL, {"name": "mine", "mountPath": "/etc/edl/discover_hosts.sh"}]),
        container("et", volumeMounts=[_EDL], env=[{"name": "KUBEAI_DIR", "value": "/elsewhere"}]),
        container("et", volumeMounts=[_EDL, {"name": "mine", "mountPath": "/var/run/kubeai"}]),
    ],
    ids=["no place for it", "own script", "own directory", "own volume"],
)
def test_a_launcher_that_would_not_read_our_list_has_no_script(et: Manifest) -> None:
    """Nor a file for it, as that means that no command is needed to leave hosts out."""
    made = launcher(containers=[et, container("other")])
    made["spec"]["volumes"].append({"name": "mine", "emptyDir": {}})
    after = patched(made)
    assert "excluded-hosts" not in files(after)
    assert f"{PREFIX}discovery-script" not in after["metadata"]["annotations"]
    assert "subPath" not in str(after["spec"]["containers"])


def test_a_volume_made_by_hand_is_taken_as_it_is() -> None:
    by_hand = {
        "name": "job-supervisor",
        "projected": {
            "sources": [{"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 600, "path": "token"}}]
        },
    }
    made = launcher()
    made["spec"]["volumes"].append(by_hand)
    after = patched(made)
    assert volume(after) == by_hand
    assert mounts(after["spec"]["containers"][0]) == [_AT]


def test_a_second_pass_changes_nothing() -> None:
    for made in (pod(), launcher(), pod(initContainers=[container("sidecar", restartPolicy="Always")])):
        avoidance_patch = replace(GIFTS, avoid=AvoidedNodes(["n1", "n2"]))
        again = outcome(patched(made, avoidance_patch), avoidance_patch)
        assert not again.patch
        assert not again.warnings


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("made", [pod(), launcher()], ids=["pod", "launcher"])
def test_what_comes_of_it_is_a_pod(made: Manifest, version: str) -> None:
    """By the schema of the oldest and the newest Kubernetes that this is for."""
    valid(patched(made, replace(GIFTS, avoid=AvoidedNodes(["n1", "n2"]))), version)
