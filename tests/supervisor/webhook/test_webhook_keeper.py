"""New pods get the address of the state keeper on their node, where there is one."""

from dataclasses import replace
from typing import Any

import pytest

from tests.supervisor.webhook.webhook_pods import (
    GIFTS,
    NEWEST,
    OLDEST,
    Manifest,
    container,
    outcome,
    patched,
    pod,
    valid,
)

KEPT = replace(GIFTS, keeper_port=8476)
HOST = {"name": "KUBEAI_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
KEEPER = {"name": "KUBEAI_KEEPER", "value": "$(KUBEAI_HOST_IP):8476"}


def _env(made: Manifest, number: int = 0) -> Any:
    return made["spec"]["containers"][number].get("env")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_container_learns_the_keeper_of_its_node(version: str) -> None:
    """After its own variables; the node's address comes first, as the other is made of it."""
    own = {"name": "OWN", "value": "1"}
    made = pod(containers=[container(), container("other", env=[own])])
    after = patched(made, KEPT)
    assert (_env(after), _env(after, 1)) == ([HOST, KEEPER], [own, HOST, KEEPER])
    valid(after, version)
    assert outcome(after, KEPT).patch == ()


def test_a_container_keeps_what_it_sets_itself() -> None:
    """Also an empty value, with which a job does without the keeper, and another address of the node."""
    for own in ({"name": "KUBEAI_KEEPER", "value": "elsewhere:1"}, {"name": "KUBEAI_KEEPER", "value": ""}):
        assert _env(patched(pod(containers=[container(env=[own])]), KEPT)) == [own]
    address = {"name": "KUBEAI_HOST_IP", "value": "10.0.0.1"}
    assert _env(patched(pod(containers=[container(env=[address])]), KEPT)) == [address, KEEPER]


def test_a_container_without_a_token_learns_of_no_keeper() -> None:
    """It could send nothing there."""
    elsewhere = {"name": "own", "mountPath": "/var/run/kubeai"}
    assert _env(patched(pod(containers=[container(volumeMounts=[elsewhere])]), KEPT)) is None
    assert _env(patched(pod(volumes=[{"name": "job-supervisor", "emptyDir": {}}]), KEPT)) is None


def test_without_a_keeper_no_variable_is_set() -> None:
    assert _env(patched(pod())) is None


def test_who_has_not_opted_in_is_left_alone() -> None:
    assert outcome(pod(annotations={}), KEPT).patch == ()
