"""The table of what the supervisor can do with each kind of job.

Tests under the real controllers prove it, the docs list it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.testkit.controlplane.binaries import KUBERNETES_PINS, PINS

SHOWS = "shows"
"""The property of a test's report that has the title of a kind and a verb."""

_COLUMNS = (
    "kind",
    "when a host will be reclaimed",
    "resumes with fewer hosts",
    "gets hosts back",
    "tested with",
    "retries that ten reclaims in a row use",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One kind, or one form of it.

    Attributes:
        kind: Its name in the registry.
        title: Its name in the docs.
        controller: Its controller's name.
        module: The Go module of the controller, and the directory that pins its version; None for a controller of ours.
        newest: The directory that pins a newer version, for which the same tests hold; None if one version was tested.
        leaves_hosts_out: Whether a job goes on without a host that will be reclaimed.
        resumes_smaller: Whether a job resumes with fewer workers than it had.
        grows_running: Whether a job gets workers back while it runs, and not just at its next resume.
        documented: The smallest and the requested size of the sample job, and then of those of the page.
        keeps: Annotations of ours, without their prefix, that stay on a job that runs at its own size again.
    """

    kind: str
    title: str
    controller: str
    module: tuple[str, Path] | None
    newest: Path | None = None
    leaves_hosts_out: bool = False
    resumes_smaller: bool = True
    grows_running: bool = False
    documented: tuple[tuple[int, int], ...] = ((2, 4), (2, 4))
    keeps: frozenset[str] = frozenset()

    @property
    def tested_with(self) -> str:
        """The controller, with its versions as they are pinned."""
        if self.module is None:
            return self.controller
        name, pins = self.module
        return f"{self.controller} {' and '.join(_version(name, each) for each in (pins, self.newest) if each)}"

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table."""
        reclaimed = "goes on without it, down to its minimum" if self.leaves_hosts_out else "stops, and resumes"
        return (
            self.title,
            reclaimed,
            "yes" if self.resumes_smaller else "no",
            "while it runs" if self.grows_running else "at its next resume",
            self.tested_with,
            "0",
        )


def _version(module: str, pins: Path) -> str:
    found = re.search(rf"{re.escape(module)} v(\S+)", (pins / "go.mod").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


_OPERATORS = PINS / "operators"
_training_operator = partial(
    Support,
    controller="training-operator",
    module=("github.com/kubeflow/training-operator", _OPERATORS / "training-operator"),
)

TRAINING_JOB = Support(
    kind="trainingjob",
    title="`TrainingJob` of et-operator",
    controller="a stand-in for et-operator",
    module=None,
    leaves_hosts_out=True,
    grows_running=True,
    documented=((2, 4),),
    keeps=frozenset(),
)
OWN_TRAINING_JOB = replace(
    TRAINING_JOB, title="`TrainingJob`", controller="our [operator](../kubernetes/trainingjob-operator.md)"
)
MPI_JOB = Support(
    kind="mpijob",
    title="`MPIJob`",
    controller="mpi-operator",
    module=("github.com/kubeflow/mpi-operator", _OPERATORS / "mpi-operator"),
    leaves_hosts_out=True,
    grows_running=True,
)
_pytorch_job = partial(_training_operator, kind="pytorchjob", documented=((2, 4), (2, 4), (4, 4)))
PYTORCH_ROUNDS = _pytorch_job(
    title="`PyTorchJob` with `rdzvBackend: kubeai`", leaves_hosts_out=True, grows_running=True
)
PYTORCH_JOB = _pytorch_job(title="other `PyTorchJob`")
TF_JOB = _training_operator(kind="tfjob", title="`TFJob`", documented=((2, 4), (2, 4), (3, 4)))
VOLCANO_JOB = Support(
    kind="vcjob",
    title="Volcano `Job`",
    controller="Volcano",
    module=("volcano.sh/volcano", _OPERATORS / "volcano"),
    documented=((2, 4), (3, 5)),
    keeps=frozenset({"suspensions"}),
)
INDEXED_JOB = Support(
    kind="batchjob", title="Indexed `Job`", controller="Kubernetes", module=("k8s.io/kubernetes", KUBERNETES_PINS)
)
JOB_SET = Support(
    kind="jobset",
    title="`JobSet`",
    controller="JobSet",
    module=("sigs.k8s.io/jobset", _OPERATORS / "jobset"),
    resumes_smaller=False,
    documented=((4, 4), (4, 4)),
)
TRAIN_JOB = Support(
    kind="trainjob",
    title="`TrainJob`",
    controller="Kubeflow Trainer",
    module=("github.com/kubeflow/trainer/v2", _OPERATORS / "trainer"),
    newest=_OPERATORS / "trainer-2.3",
    resumes_smaller=False,
    documented=((4, 4), (4, 4)),
)

ALL = (
    OWN_TRAINING_JOB,
    TRAINING_JOB,
    MPI_JOB,
    PYTORCH_ROUNDS,
    PYTORCH_JOB,
    TF_JOB,
    VOLCANO_JOB,
    INDEXED_JOB,
    JOB_SET,
    TRAIN_JOB,
)


def table() -> Iterator[str]:
    """The lines of the table in the docs."""
    yield _line(_COLUMNS)
    yield _line(["---"] * len(_COLUMNS))
    yield from (_line(support.cells) for support in ALL)


def shown(outcomes: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The lines of a table of what tests have shown, by kinds and verbs; "-" is what no test of this run was about."""
    verbs = sorted({verb for _, verb in outcomes})
    yield _line(["kind", "controller", *verbs])
    for support in ALL:
        cells = [outcomes.get((support.title, verb), "-") for verb in verbs]
        if set(cells) != {"-"}:
            yield _line([support.title, support.tested_with, *cells])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(table()))  # noqa: T201 - for the page
