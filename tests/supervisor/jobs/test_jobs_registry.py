"""A kind of job is one folder and one line in the registry."""

import re
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from servicekit.kubernetes.objects import Metadata, Owner
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host, JobName
from supervisor.identity.tokens import ProcessPrincipal
from supervisor.jobs import registry
from supervisor.jobs.kind import AnyKind
from supervisor.jobs.registry import KINDS, chosen, process_of

_ROOT = Path(registry.__file__).parents[2]
_CODE = ("job_supervisor", "supervisor", "node_agent", "servicekit", "sdk/kubeai", "charts")
_REGISTRY = "supervisor/jobs/registry.py"
_CHECK = ("supervisor/check/", "charts/elastic-job-supervisor/templates/supervisor/webhook.yaml")
"""What checks manifests knows more kinds than the supervisor has."""
_WRITTEN = "charts/elastic-job-supervisor/values.schema.json"
"""Written from the registry."""
_OPERATOR = (
    "charts/elastic-job-supervisor/files/trainingjob-operator/",
    "charts/elastic-job-supervisor/templates/trainingjob-operator/",
    "charts/elastic-job-supervisor/templates/validate.yaml",
    "charts/elastic-job-supervisor/templates/_helpers.tpl",
    "charts/elastic-job-supervisor/values.yaml",
    "charts/elastic-job-supervisor/values.schema.json",
    "charts/files.py",
    "charts/settings_schema.py",
)
"""Where the chart names the operator that we have for jobs of one kind."""
_TEXT = frozenset({".py", ".yaml", ".json", ".tpl", ".txt", ".html", ".css", ".js", ".proto", ".toml"})


def _own(path: Path, *kinds: AnyKind) -> bool:
    """Whether a file is one of these kinds' own; the line of the registry is the only other place."""
    folders = (f"supervisor/jobs/{kind.name}/" for kind in kinds)
    folders_of_charts = ("elastic-job-supervisor/files/kinds", "job-supervisor-hub/files/customizations")
    charts = {f"charts/{folder}/{kind.name}.yaml" for kind in kinds for folder in folders_of_charts}
    if any(kind.name == "trainingjob" for kind in kinds) and path.as_posix().startswith(_OPERATOR):
        return True
    return path.as_posix().startswith((*folders, *_CHECK)) or path.as_posix() in {
        *charts,
        _REGISTRY,
        _WRITTEN,
    }


def _names(kind: AnyKind, text: str) -> bool:
    """Whether a text names the kind; `jobs` alone says nothing."""
    names = {kind.name, kind.resource.plural} - {"jobs"}
    return any(re.search(name, text, re.IGNORECASE) for name in names)


def _made_of(kind: AnyKind) -> list[AnyKind]:
    """The kind, and those of whose jobs a controller makes jobs of this kind."""
    return [each for each in KINDS if each is kind or (each.dependent and each.dependent.kind == kind.name)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_other_file_names_a_kind(kind: AnyKind) -> None:
    files = chain.from_iterable((_ROOT / folder).rglob("*") for folder in _CODE)
    paths = [path.relative_to(_ROOT) for path in files if path.suffix in _TEXT]
    assert len(paths) > 300
    others = [path for path in paths if not _own(path, *_made_of(kind))]
    assert [path for path in others if _names(kind, (_ROOT / path).read_text("utf-8"))] == []
    if "." not in kind.resource.group:
        return  # Jobs of Kubernetes itself are also parts of jobs of other kinds.
    group = re.compile(rf"(?<![\w.]){re.escape(kind.resource.group)}")
    siblings = [each for each in KINDS if each.resource.group == kind.resource.group]
    others = [path for path in paths if not _own(path, *siblings, *_made_of(kind))]
    assert [path for path in others if group.search((_ROOT / path).read_text("utf-8"))] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_registry_names_a_kind_in_its_import_and_its_list_alone(kind: AnyKind) -> None:
    lines = Path(registry.__file__).read_text("utf-8").splitlines()
    assert len([line for line in lines if _names(kind, line)]) == 2


def test_no_two_kinds_have_one_name_or_one_resource() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert len({(kind.resource.group, kind.resource.plural) for kind in KINDS}) == len(KINDS)
    assert all(kind.name in (kind.resource.kind.lower(), "vcjob", "batchjob") for kind in KINDS)


def test_a_pod_trains_for_the_job_that_owns_it() -> None:
    """The owner is compared by group and kind: a `Job` of another group is another job."""
    mine = Owner("MPIJob", "bert", "u", "kubeflow.org/v2beta1", controller=True)
    assert process_of(pod(mine)) == ProcessPrincipal(JobName("team/mpijob.bert"), "u", None, Host("bert-worker-0"))
    for other in (None, msgspec.structs.replace(mine, api_version="example.com/v1"), Owner("ReplicaSet", "bert", "u")):
        assert process_of(pod(other)) is None
    assert process_of(None) is None
    assert process_of(pod(mine, host="bert-0")) == ProcessPrincipal(
        JobName("team/mpijob.bert"), "u", None, Host("bert-0")
    )


def pod(owner: Owner | None, host: str = "bert-worker-0") -> Pod:
    return Pod(metadata=Metadata("bert-worker-0", "uid", "1", "team"), owner=owner, host=Host(host))


def test_named_kinds_come_with_those_of_which_their_controllers_make_jobs() -> None:
    """In the registry's order, in which a TrainJob claims its pods before the JobSet that is made of it does."""
    assert [kind.name for kind in chosen(["batchjob", "trainjob"])] == ["trainjob", "jobset", "batchjob"]
    assert chosen([]) == KINDS


def test_an_unknown_kind_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ValueError, match=r"'pytorch' is none of trainingjob, mpijob, pytorchjob, tfjob, vcjob, "):
        chosen(["pytorchjob", "pytorch"])
