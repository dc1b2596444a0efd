"""New jobs: whoever creates one is told what would go wrong at a reclaim, and creates it whatever that is."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simulator.certificates import SimulatedAuthority
from supervisor.check import checking
from supervisor.check.job import CheckedFacts, CheckedJob, CheckedKind, CheckRule, FindingSeverity, JobProblem
from supervisor.refusals import Code, Wire
from supervisor.webhook.server import CHECK_PATH, AdmissionRequest, warnings_for
from tests.supervisor.check.check_manifests import GOOD, Manifest, changed
from tests.supervisor.webhook.webhook_pods import review
from tests.supervisor.webhook.webhook_serving import Asking, asking

_GOOD = GOOD[CheckedKind.MPI_JOB]()
_SCRIPT = "spec.mpiReplicaSpecs.Launcher.template.spec.containers.0.args"


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asking]:
    async with asking(SimulatedAuthority(tmp_path / "tls")) as server:
        yield server


async def _response(asked: Asking, made: object, **request: Any) -> Any:
    answer = await asked.ask(review(made, **request), CHECK_PATH)
    assert (answer.status, answer.response["allowed"], answer.patch) == (200, True, [])
    return answer.response


async def test_a_good_job_is_created_without_a_word(asked: Asking) -> None:
    assert "warnings" not in await _response(asked, _GOOD)


async def test_a_bad_job_is_created_with_warnings(asked: Asking) -> None:
    """Errors first, with the fix, and no hints."""
    made = changed(_GOOD, _SCRIPT, ["horovodrun -np 4 --host-discovery-script a python train.py || true"])
    made["metadata"]["annotations"].pop("job-supervisor.kube-ai.io/min-workers")
    first, second = (await _response(asked, made))["warnings"]
    assert first.startswith("job-supervisor: `|| true` makes the exit code 0")
    assert second.startswith("job-supervisor: horovodrun starts exactly 4 processes, so after a reclaim")
    assert second.endswith("(fixed-processes) Compute it in the shell: -np $(wc -l </etc/mpi/hostfile).")


@pytest.mark.parametrize(
    ("annotations", "warning"),
    [
        ({"managed-by-job-supervisor": "True"}, "'True' is neither true nor false"),
        ({"managed-by-job-supervisor": "true", "max-wait-time": "soon"}, "'soon' is not a whole number of seconds"),
        ({"managed-by-job-supervisor": "true", "max-wait-tim": "600"}, "perhaps max-wait-time is meant."),
        ({"managed-by-job-supervisr": "true"}, "perhaps managed-by-job-supervisor is meant."),
    ],
)
async def test_a_typing_error_that_costs_protection_is_told(
    asked: Asking, annotations: dict[str, str], warning: str
) -> None:
    """Nobody would see it before the first reclaim."""
    made = {f"job-supervisor.kube-ai.io/{name}": text for name, text in annotations.items()}
    warnings = (await _response(asked, changed(_GOOD, "metadata.annotations", made)))["warnings"]
    assert any(warning in each for each in warnings)


async def test_a_job_that_opts_out_is_created_without_a_word(asked: Asking) -> None:
    """Its pods are its user's business."""
    opted_out = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "false"}
    bad = changed(changed(_GOOD, _SCRIPT, ["python train.py || true"]), "metadata.annotations", opted_out)
    assert "warnings" not in await _response(asked, bad)


async def test_many_warnings_are_counted(asked: Asking) -> None:
    """Names that cannot stand in a header do not."""
    task = {"replicas": 1, "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": []}}}
    tasks = [{"name": f"a\n{number}", **task} for number in range(20)]
    warnings = (await _response(asked, changed(GOOD[CheckedKind.VOLCANO_JOB](), "spec.tasks", tasks)))["warnings"]
    assert len(warnings) == 9
    assert warnings[-1].endswith("and 32 more; `job-supervisor check` shows all")
    assert all(each.isprintable() and len(each) <= 256 for each in warnings)


async def test_only_creation_is_checked(asked: Asking) -> None:
    made = changed(_GOOD, _SCRIPT, ["horovodrun -np 4 python train.py"])
    assert "warnings" not in await _response(asked, made, operation="UPDATE")


@pytest.mark.parametrize("made", [None, [], 7, {"kind": "Job"}, {**_GOOD, "spec": {"a": "b" * 100_000}}])
async def test_a_job_that_is_not_understood_is_created(asked: Asking, made: Manifest | None) -> None:
    assert "warnings" not in await _response(asked, made)
    assert not asked.refusals.counts


async def test_a_job_is_created_if_a_rule_fails(asked: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_job: CheckedJob, _facts: CheckedFacts) -> Iterator[JobProblem]:
        raise ZeroDivisionError

    monkeypatch.setattr(checking, "RULES", (CheckRule("broken", FindingSeverity.ERROR, "nothing", broken),))
    assert "warnings" not in await _response(asked, _GOOD)


async def test_what_is_no_review_is_refused(asked: Asking) -> None:
    assert (await asked.send(b"{}", CHECK_PATH)).status == 400
    assert asked.refusals.counts == {(Wire.WEBHOOK, Code.MALFORMED): 1}


@pytest.mark.parametrize("part", ["$((", "$(", "`", "'", "sh -c '", "trap '", "; exit ", "|| ", "--ckpt", "#"])
def test_a_long_script_takes_no_long_time(part: str) -> None:
    """The API server waits two seconds, and this takes 0.03 to 0.2.

    Of the processor's time, and the least of three, as the machine may be busy and its heap full. Lines of Python would
    not show how long an expression searches.
    """
    made = changed(_GOOD, _SCRIPT, [part * (60_000 // len(part))])
    request = msgspec.json.decode(json.dumps(review(made)["request"]), type=AdmissionRequest)

    def seconds() -> float:
        begun = time.thread_time()
        warnings_for(request)
        return time.thread_time() - begun

    assert min(seconds() for _ in range(3)) < 1
