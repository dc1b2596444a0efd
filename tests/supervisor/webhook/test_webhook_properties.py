"""Properties of the mutation: a pod keeps its own fields, stays valid, and is mutated once."""

from contextlib import suppress
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.webhook.mutation import AvoidedNodes
from supervisor.webhook.server import PodNotUnderstoodError
from tests.supervisor.webhook.webhook_pods import (
    GIFTS,
    OPTED_IN,
    Manifest,
    allows,
    container,
    launcher,
    outcome,
    patched,
    pod,
    terms,
    valid,
)
from tests.testkit.properties import examples

_SLOW = examples(40)
"""Whoever knows the schema reads all of it each time."""

_NODES = ("n1", "n2", "n3", "n4")
_PATHS = (
    "/data",
    "/var/run/kubeai",
    "/var/run/kubeai/token",
    "/var/run",
    "/run/kubeai",
    "/",
    "/etc/edl",
    "/etc/edl/discover_hosts.sh",
)
_VOLUMES = ("data", "job-supervisor", "training-job-hostfile")
_EXPRESSIONS = st.builds(
    lambda key, operator, values: {"key": key, "operator": operator, "values": values},
    st.sampled_from(["zone", "kubernetes.io/hostname"]),
    st.sampled_from(["In", "NotIn"]),
    st.lists(st.sampled_from(["a", "b", "n1"]), min_size=1, max_size=2, unique=True),
)
_FIELDS = st.builds(
    lambda operator, name: {"key": "metadata.name", "operator": operator, "values": [name]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(_NODES),
)
_TERMS = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(_EXPRESSIONS, max_size=2),
        "matchFields": st.lists(_FIELDS, max_size=2),
    },
)


def _required(each: list[Manifest]) -> Manifest:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": each}}}


def _preferred(term: Manifest) -> Manifest:
    terms = [{"weight": 1, "preference": term}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


_AFFINITIES: st.SearchStrategy[Manifest] = st.one_of(
    st.just({}),
    st.just({"nodeAffinity": {}}),
    _TERMS.map(_preferred),
    st.lists(_TERMS, min_size=1, max_size=3).map(_required),
)
_MOUNTS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(_VOLUMES), "mountPath": st.sampled_from(_PATHS)},
        optional={"readOnly": st.booleans()},
    ),
    max_size=3,
    unique_by=lambda mount: mount["mountPath"],
)


@st.composite
def pods(draw: st.DrawFn) -> Manifest:
    names = iter(("one", "two", "three", "four"))

    def containers(fewest: int) -> list[Manifest]:
        made = [container(next(names)) for _ in range(draw(st.integers(fewest, 2)))]
        for each in made:
            if draw(st.booleans()):
                each["volumeMounts"] = draw(_MOUNTS)
        return made

    made: Manifest = draw(st.sampled_from([pod, launcher]))()
    if draw(st.booleans()):
        made["spec"]["containers"] = containers(1)
        made["spec"]["initContainers"] = containers(0)
        for each in made["spec"]["initContainers"]:
            if draw(st.booleans()):
                each["restartPolicy"] = "Always"
    others = [{"name": name, "emptyDir": {}} for name in draw(st.sets(st.sampled_from(_VOLUMES)))]
    there = {each["name"] for each in made["spec"].get("volumes", [])}
    made["spec"].setdefault("volumes", []).extend(each for each in others if each["name"] not in there)
    if draw(st.booleans()):
        made["spec"]["affinity"] = draw(_AFFINITIES)
    return made


@_SLOW
@given(pods(), st.lists(st.sampled_from(_NODES), max_size=3, unique=True), st.integers(0, 3))
def test_a_pod_is_shaped_once_and_stays_whole(made: Manifest, avoid: list[str], noticed: int) -> None:
    """The patch applies, replaces nothing and gives what the schema has; a second one is empty."""
    injection = replace(GIFTS, avoid=AvoidedNodes(avoid[:noticed], avoid[noticed:]))
    after = patched(made, injection)
    valid(after)
    assert not outcome(after, injection).patch


@given(pods(), st.lists(st.sampled_from(_NODES), max_size=3, unique=True), st.sampled_from(["a", "b"]))
def test_a_pod_is_not_bound_where_it_was_not_before(made: Manifest, avoid: list[str], zone: str) -> None:
    """It loses noticed nodes alone, and is not left without any but by these."""
    after = patched(made, replace(GIFTS, avoid=AvoidedNodes(avoid)))
    for node in _NODES:
        labels = {"zone": zone, "kubernetes.io/hostname": node}
        before, now = allows(terms(made), node, labels), allows(terms(after), node, labels)
        assert now <= before
        assert now or not before or node in avoid


_NAMES = st.sampled_from(["metadata", "spec", "annotations", "containers", "name", next(iter(OPTED_IN))])
_SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_NAMES, inner)))
def test_nonsense_is_left_as_it_is(made: object) -> None:
    with suppress(PodNotUnderstoodError):
        assert not outcome(made).patch
