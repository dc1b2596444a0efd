"""How a job of any kind gets into the supervisor's care, and out of it."""

import msgspec
import pytest

from supervisor.cluster.annotations import MANAGED, SPOT, SUSPENDED_BY
from supervisor.domain.job import Phase
from tests.supervisor.jobs.every_kind import OPTED_IN, SIZED, observed, spec_of

_SUSPENDED = {SUSPENDED_BY: "elastic-job-supervisor"}


def _templated(kind: str, **annotations: str) -> dict[str, object]:
    """The spec of a job whose templates have these annotations."""
    metadata = {"annotations": {f"{MANAGED.partition('/')[0]}/{name}": text for name, text in annotations.items()}}
    text = msgspec.json.encode(spec_of(kind, 3)).decode()
    bare = msgspec.json.encode({"spec": {"containers": [{"name": "main"}]}}).decode()
    marked = msgspec.json.encode({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}).decode()
    read: dict[str, object] = msgspec.json.decode(text.replace(bare, marked))
    return read


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize(
    ("annotations", "is_supervised"),
    [
        ({}, True),
        ({MANAGED: "true"}, True),
        ({MANAGED: "false"}, False),
        ({MANAGED: "false", SPOT: "true"}, False),
        ({SPOT: "false"}, False),
        ({MANAGED: "true", SPOT: "false"}, True),
    ],
)
def test_the_jobs_own_annotation_counts_more_than_its_templates(
    kind: str, annotations: dict[str, str], *, is_supervised: bool
) -> None:
    """The template of a Kubernetes Job cannot be changed while it runs."""
    spec = {**_templated(kind), **_templated(kind, **{MANAGED.partition("/")[2]: "true"})}
    value = observed(kind, spec, annotations)
    assert (value is not None) is is_supervised
    assert value is None or not value.spec.refused


@pytest.mark.parametrize("kind", SIZED)
def test_a_supervised_job_that_opts_out_is_let_go(kind: str) -> None:
    """One that the supervisor has suspended is resumed first, else nobody would."""
    spec, known = spec_of(kind, 3), observed(kind, spec_of(kind, 3), OPTED_IN)
    assert observed(kind, spec, {MANAGED: "false"}, known=known) is None
    held = observed(kind, spec, {MANAGED: "false", **_SUSPENDED}, known=known)
    assert held is not None
    assert held.decision.phase is Phase.WAITING


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize(("name", "text"), [(MANAGED, "True"), (MANAGED, "yes"), (SPOT, "1"), (MANAGED, "")])
def test_a_job_that_mistypes_its_opting_in_is_shown_and_not_supervised(kind: str, name: str, text: str) -> None:
    """Until it is mended: then it is registered anew."""
    spec, mistyped = spec_of(kind, 3), {name: text}
    shown = observed(kind, spec, mistyped)
    assert shown is not None
    short = name.partition("/")[2]
    why = f"The job is not supervised: its annotation {short} is '{text}', and only 'true' opts in."
    assert (shown.spec.refused, shown.spec.ignored, shown.decision.reason) == (True, (why,), why)
    assert observed(kind, spec, mistyped, known=shown) == shown
    assert observed(kind, spec, OPTED_IN, known=shown) is None
    assert observed(kind, spec, {}, known=shown) is None
    assert observed(kind, spec, {**mistyped, SPOT if name == MANAGED else MANAGED: "false"}) is None
