"""`job-supervisor check` on files, standard input and command lines, without any supervisor or cluster."""

import io
import json
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from supervisor.check.job import CheckedKind
from supervisor.check.manifests import SUPERVISED
from tests.job_supervisor.cli.cli_running import RunHere
from tests.supervisor.check.check_manifests import GOOD, GOOD_COMMANDS, Manifest, changed

_EXAMPLES = sorted(Path(__file__).parents[3] / "examples" / f"{kind}.yaml" for kind in SUPERVISED)
_GOOD = GOOD[CheckedKind.MPI_JOB]()
_WARNED = changed(_GOOD, "spec.runPolicy.backoffLimit", 0)
_BAD = changed(_WARNED, "spec.mpiReplicaSpecs.Worker.template.spec.terminationGracePeriodSeconds", 10)


def _file(directory: Path, *documents: Manifest, name: str = "jobs.yaml") -> Path:
    file = directory / name
    file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return file


@pytest.mark.parametrize("file", _EXAMPLES, ids=lambda file: file.stem)
def test_nothing_is_found_in_the_examples(run_here: RunHere, file: Path) -> None:
    said = run_here("check", file, "-o", "name")
    assert (said.out.split(), said.err) == ([], "")


def test_a_finding_is_a_problem_and_a_fix_in_sentences(run_here: RunHere, tmp_path: Path) -> None:
    said = run_here("check", _file(tmp_path, _GOOD, {"apiVersion": "v1", "kind": "Service"}, _BAD))
    assert said.code == 65
    first, problem, fix, *_, summary = said.out.splitlines()
    assert first.startswith(f"MPIJob training/resnet ({tmp_path / 'jobs.yaml'}): error grace-too-short, at spec.mpi")
    assert problem.startswith("  The pods of Worker are killed 10 s after")
    assert fix == "  Fix: Set it to the time of a checkpoint and of one step, for example 60."
    assert summary == "2 jobs checked: 1 error and 1 warning."


def test_warnings_fail_only_if_asked(run_here: RunHere, tmp_path: Path) -> None:
    file = _file(tmp_path, _WARNED)
    assert run_here("check", file).code == 0
    assert run_here("check", "--strict", file).code == 65


def test_a_stated_checkpoint_time_counts(run_here: RunHere, tmp_path: Path) -> None:
    file = _file(tmp_path, _GOOD)
    assert run_here("check", file, "--checkpoint", "30s").code == 0
    assert "a checkpoint takes 60 s." in run_here("check", file, "--checkpoint", "1m").out


def test_programs_get_all_of_it(run_here: RunHere, tmp_path: Path) -> None:
    file = _file(tmp_path, _GOOD, _BAD, name="jobs.json")
    said = run_here("check", file, "-o", "json")
    good, bad = said.json["jobs"]
    assert good == {"job": "MPIJob training/resnet", "source": str(file), "findings": []}
    assert [each["rule"] for each in bad["findings"]] == ["grace-too-short", "no-retries"]
    assert set(bad["findings"][0]) == {"rule", "severity", "job", "where", "problem", "fix"}
    assert run_here("check", file, "-o", "name").out == "grace-too-short\nno-retries\n"
    assert run_here("check", file, "-o", "wide").out.splitlines()[0].split() == [
        "SEVERITY", "RULE", "JOB", "SOURCE", "WHERE", "PROBLEM", "FIX",
    ]  # fmt: skip


def test_standard_input_is_read(run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(_BAD).encode())))
    said = run_here("check", "-")
    assert said.code == 65
    assert "MPIJob training/resnet (standard input): error" in said.out


def test_command_lines_are_checked(run_here: RunHere) -> None:
    assert run_here("check", "--command", GOOD_COMMANDS[0]).code == 0
    said = run_here("check", "--command", "torchrun --rdzv-backend=c10d --nnodes=1:4 train.py")
    assert said.code == 0  # As announced reclaims are handled, and only a loss without a notice ends the run.
    assert "command torchrun (--command): warning no-torchrun-restarts, at torchrun --max-restarts" in said.out
    assert "lost without a notice" in said.out
    unknown = run_here("check", "--command", "python train.py")
    assert "no launcher is recognized" in unknown.err
    assert "Known are horovodrun, kubeai-run, mpirun and torchrun." in unknown.err
    assert run_here("check", "--command", "torchrun 'train.py").code == 64


def test_the_runtime_of_a_train_job_may_be_in_another_file(run_here: RunHere, tmp_path: Path) -> None:
    bad = changed(GOOD[CheckedKind.TRAIN_JOB](), "items.0.spec.template.spec.failurePolicy", None)
    runtime, job = (_file(tmp_path, each, name=f"{each['kind']}.yaml") for each in bad["items"])
    for both in ((runtime, job), (job, runtime)):
        said = run_here("check", "-o", "name", *both)
        assert (said.out, said.err) == ("failure-is-final\n", "")
    alone = run_here("check", job)
    assert (alone.code, "its runtime is not here" in alone.err) == (0, True)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 66),
        (b"kind: Service", 66),
        (b"a: [", 64),
        (b"a: &a [*a]\nb: !!python/object:os.system x", 64),
        (b"\xff\xfe\x00", 64),
        (b"[" * 20_000, 64),
    ],
    ids=["nothing", "no job", "no YAML", "a tag", "no text", "deep"],
)
def test_a_file_without_jobs_is_no_success(run_here: RunHere, tmp_path: Path, content: bytes, code: int) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_bytes(content)
    said = run_here("check", file)
    assert (said.code, said.out) == (code, "")
    assert str(file) in said.err


def test_what_is_not_there_is_no_success(run_here: RunHere, tmp_path: Path) -> None:
    assert run_here("check", tmp_path / "none.yaml").code == 66
    assert run_here("check").code == 64
