from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from supervisor.jobs.kind import AnyKind
from supervisor.jobs.registry import KINDS, chosen, made_by
from tests.chart.chart_rendering import NAMESPACE, Helm, environment, one
from tests.controlplane.agent.agent_on_cluster import RULES as AGENT_RULES
from tests.testkit.controlplane.installed import CLUSTER_RULES, OWN_RULES, RULES, SIGN_IN_RULES, job_rules

_AGENT = "elastic-job-supervisor-agent"
Right = tuple[str, str, str, str]
"""Group, resource or path, its name or nothing, verb."""


@pytest.mark.parametrize(
    ("kind", "name", "documented"),
    [
        ("ClusterRole", "elastic-job-supervisor", RULES),
        ("Role", "elastic-job-supervisor", OWN_RULES),
        ("ClusterRole", _AGENT, AGENT_RULES),
    ],
    ids=["supervisor", "own-namespace", "agent"],
)
def test_the_roles_are_those_that_the_page_lists(
    helm: Helm, kind: str, name: str, documented: Sequence[Mapping[str, Any]]
) -> None:
    """The suites on a control plane run under the same, and docs/kubernetes/permissions.md is held to them."""
    assert set(rights(one(helm.render(), kind, name)["rules"])) == set(rights(documented))


def test_who_brings_a_certificate_gives_no_rights_for_another(helm: Helm) -> None:
    """The supervisor then writes no authority anywhere; the Secret is for its tokens alone."""
    tls = {"mode": "existingSecret", "existingSecret": "certificate", "caBundle": "-----BEGIN CERTIFICATE-----"}
    objects = helm.render({"tls": tls})
    own = set(rights(one(objects, "Role", "elastic-job-supervisor")["rules"]))
    assert {(resource, name) for _, resource, name, _ in own if resource in {"secrets", "configmaps"}} == {
        ("secrets", ""),
        ("secrets", "elastic-job-supervisor-keys"),
    }
    everywhere = rights(one(objects, "ClusterRole", "elastic-job-supervisor")["rules"])
    assert "mutatingwebhookconfigurations" not in {resource for _, resource, _, _ in everywhere}


def test_who_lets_people_sign_in_gives_the_rights_for_it(helm: Helm) -> None:
    objects = helm.render({"supervisor": {"settings": {"clusterSignIn": True}}})
    given = set(rights(one(objects, "ClusterRole", "elastic-job-supervisor")["rules"]))
    assert given == set(rights((*RULES, *SIGN_IN_RULES)))
    assert environment(one(objects, "Deployment"))["JOB_SUPERVISOR_CLUSTER_SIGN_IN"] == "true"


@pytest.mark.parametrize("wanted", [True, False])
def test_who_wants_no_events_gives_no_right_to_make_them(helm: Helm, *, wanted: bool) -> None:
    objects = helm.render({"supervisor": {"settings": {"kubernetesEvents": wanted}}})
    everywhere = set(rights(one(objects, "ClusterRole", "elastic-job-supervisor")["rules"]))
    given = {(group, verb) for group, resource, _, verb in everywhere if resource == "events"}
    assert given == {("", "list"), ("", "watch")} | {("events.k8s.io", verb) for verb in ("create", "patch") if wanted}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_who_supervises_one_kind_gives_no_right_of_another(helm: Helm, kind: AnyKind) -> None:
    """But for those on the jobs that the controller of the kind makes; what every kind needs stays."""
    objects = helm.render({"supervisor": {"settings": {"kinds": [kind.name]}}})
    given, every = (set(rights(one(each, "ClusterRole")["rules"])) for each in (objects, helm.render()))
    ours = {right for each in (kind, *made_by(kind)) for right in _declared(each)}
    others = {right for each in KINDS for right in _declared(each)} - ours
    assert given == every - others
    assert environment(one(objects, "Deployment"))["JOB_SUPERVISOR_KINDS"] == kind.name


def test_who_supervises_some_namespaces_gives_rights_to_change_jobs_there_alone(helm: Helm) -> None:
    """Cluster-wide, what every namespace needs to be supervised remains, and nothing of any kind of job."""
    settings = {"kinds": ["pytorchjob", "mpijob"], "namespaces": ["team-a", "team-b"]}
    objects = helm.render({"supervisor": {"settings": settings}})
    assert set(rights(one(objects, "ClusterRole")["rules"])) == set(rights(CLUSTER_RULES))
    account = {"kind": "ServiceAccount", "name": "elastic-job-supervisor", "namespace": NAMESPACE}
    roles = [each for each in objects if each["metadata"]["name"] == "elastic-job-supervisor-jobs"]
    assert {(each["kind"], each["metadata"]["namespace"]) for each in roles} == {
        (kind, name) for name in settings["namespaces"] for kind in ("Role", "RoleBinding")
    }
    for each in roles:
        if each["kind"] == "Role":
            assert set(rights(each["rules"])) == set(rights(job_rules(chosen(settings["kinds"]))))
        else:
            assert (each["roleRef"]["name"], each["subjects"]) == ("elastic-job-supervisor-jobs", [account])
    assert environment(one(objects, "Deployment"))["JOB_SUPERVISOR_NAMESPACES"] == "team-a,team-b"
    for hook in one(objects, "MutatingWebhookConfiguration")["webhooks"]:
        [excluded, included] = hook["namespaceSelector"]["matchExpressions"]
        assert excluded["operator"] == "NotIn"
        assert (included["operator"], included["values"]) == ("In", ["team-a", "team-b"])


def test_agents_may_change_nothing(helm: Helm) -> None:
    objects = helm.render()
    assert {right[-1] for right in rights(one(objects, "ClusterRole", _AGENT)["rules"])} == {"list", "watch"}
    bound = [each for each in objects for subject in each.get("subjects", []) if subject["name"] == _AGENT]
    assert [each["roleRef"]["name"] for each in bound] == [_AGENT]


def _declared(kind: AnyKind) -> Iterator[Right]:
    for right in kind.rights:
        yield from ((right.group, resource, "", verb) for resource in right.resources for verb in right.verbs)


def rights(rules: Sequence[Mapping[str, Any]]) -> Iterator[Right]:
    for rule in rules:
        for verb in rule["verbs"]:
            yield from (("", path, "", verb) for path in rule.get("nonResourceURLs", ()))
            for group in rule.get("apiGroups", ()):
                for resource in rule["resources"]:
                    yield from ((group, resource, name, verb) for name in rule.get("resourceNames", ("",)))
