"""Implements `check`: reads jobs from files, a command line, a cluster or a supervisor, and prints the findings."""

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import chain
from pathlib import Path

import msgspec
import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for one call.

from job_supervisor.cli.backend import Backend
from job_supervisor.cli.errors import CliExitCode, CliUsageError, UnknownError
from job_supervisor.cli.explain import rank_fault
from job_supervisor.cli.output import Block, Output, Table, complain, show
from job_supervisor.cli.showing import only
from servicekit.wording import listed
from supervisor.check.checking import check
from supervisor.check.command import LAUNCHERS
from supervisor.check.job import CheckedFacts, CheckedJob, CheckedKind, FindingSeverity, JobFinding
from supervisor.check.manifests import (
    SHAPES,
    SUPERVISED,
    is_runtime,
    job_of_bounds,
    job_of_command,
    jobs_in,
    runtime_of,
    text,
)
from supervisor.domain.ids import bare_name, kind_of, namespace
from supervisor.observability.views import JobView

Connect = Callable[[], AbstractAsyncContextManager[Backend]]

_STDIN = "-"
_SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_MAX_BYTES = 16 * 1024 * 1024


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one job. `source` is the file, or the other place where the job was read."""

    job: str
    source: str
    findings: Sequence[JobFinding]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `-o json`."""

    jobs: Sequence[Checked]

    @property
    def findings(self) -> list[JobFinding]:
        return [finding for job in self.jobs for finding in job.findings]

    def count(self, severity: FindingSeverity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


async def check_all(given: argparse.Namespace, connect: Connect) -> CliExitCode:
    """Checks all targets; a backend is opened only if one of them is not a file.

    Raises:
        CliUsageError: A file has no manifests, or nothing was named.
        UnknownError: There is no such file or job.
    """
    if not given.targets and given.line is None:
        raise CliUsageError("Name a file, a job or - for standard input; or a command line with --command.")
    stated = CheckedFacts(checkpoint_seconds=given.checkpoint)
    local = [each for each in given.targets if _is_file(each)]
    documents = dict[str, list[object]]()
    for file in local:
        with _understood(file):
            documents[file] = list(yaml.safe_load_all(_text(file)))
    checked = [_checked(job, _source(file), stated) for file in local for job in _jobs_of(file, documents)]
    if given.line is not None:
        checked.append(_checked(_command(given.line), "--command", stated))
    if len(local) < len(given.targets):
        async with connect() as backend:
            live = [each for each in given.targets if each not in local]
            checked += [each async for each in _live(backend, live, given, stated)]
    report = CheckReport(jobs=checked)
    output: Output = given.output
    if output.for_people:
        show(*(_table(report) if output.wide else _sentences(report)), _summary(report))
    else:
        output.value(report, dict.fromkeys(finding.rule for finding in report.findings))
    failed = bool(report.findings) if given.strict else report.count(FindingSeverity.ERROR) > 0
    return CliExitCode.FOUND if failed else CliExitCode.DONE


def _checked(job: CheckedJob, source: str, facts: CheckedFacts) -> Checked:
    if job.lacks_pods:
        complain(f"{job}: its runtime is not here, so few rules apply. Name the file that it is in, too.")
    return Checked(job=str(job), source=source, findings=check(job, facts))


def _is_file(target: str) -> bool:
    return target == _STDIN or Path(target).suffix in _SUFFIXES or Path(target).is_file()


def _source(file: str) -> str:
    return "standard input" if file == _STDIN else file


def _command(line: str) -> CheckedJob:
    try:
        job = job_of_command(line)
    except ValueError as error:
        raise CliUsageError(f"--command: {error}.") from error
    if not any(launch.program in LAUNCHERS for role in job.roles for launch in role.launches):
        complain(f"--command: no launcher is recognized, so few rules apply. Known are {listed(sorted(LAUNCHERS))}.")
    return job


@contextmanager
def _understood(file: str) -> Iterator[None]:
    try:
        yield
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "it is nested too deeply"
        raise CliUsageError(f"{_source(file)} has no manifests that can be read: {reason}.") from error


def _jobs_of(file: str, documents: Mapping[str, Sequence[object]]) -> list[CheckedJob]:
    """Reads the jobs of one file. Their runtimes may be in another of the files."""
    with _understood(file):
        jobs = list(jobs_in(*documents[file], beside=chain.from_iterable(documents.values())))
    if not jobs and not any(map(is_runtime, documents[file])):
        kinds = ", ".join(SHAPES)
        raise UnknownError(f"{_source(file)} has no job that can be checked; the kinds are {kinds}.")
    return jobs


def _text(file: str) -> str:
    try:
        if file == _STDIN:
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UnknownError(f"{_source(file)} cannot be read: {error.strerror}.") from error
    if len(data) > _MAX_BYTES:
        raise CliUsageError(f"{_source(file)} is larger than {_MAX_BYTES // 2**20} MiB.")
    return data.decode()


async def _live(
    backend: Backend, targets: Sequence[str], given: argparse.Namespace, stated: CheckedFacts
) -> AsyncIterator[Checked]:
    """Reads jobs from a cluster or a supervisor. A target is `KIND/NAME` as for kubectl, or the name of a job."""
    for target in targets:
        prefix, slash, name = target.partition("/")
        kind = _KINDS.get(prefix.lower()) if slash else None
        if kind is not None:
            document = await backend.manifest(SHAPES[kind].resource, given.namespace, name)
            if document is None:
                raise CliUsageError(
                    f"{kind} {name}: a supervisor's address shows no manifests. Use --kubeconfig or --context."
                )
            yield _checked(await _job(backend, document), "the cluster", stated)
            continue
        job = only(await backend.status(), target)
        supervised, document = SUPERVISED.get(kind_of(job.job)), None
        if supervised is not None:
            document = await backend.manifest(SHAPES[supervised].resource, namespace(job.job), bare_name(job.job))
        if document is not None:
            yield _checked(await _job(backend, document), "the cluster", _facts(job, stated))
            continue
        if supervised is not None:
            complain(f"{job.job}: its manifest is not visible here, so few rules apply. Use --kubeconfig or --context.")
        known = job_of_bounds(job.job, job.min_workers, job.max_workers)
        yield _checked(known, "the supervisor", _facts(job, stated))


async def _job(backend: Backend, document: object) -> CheckedJob:
    """Reads the job of a manifest on a cluster, with the runtime that it may name."""
    reference, beside = runtime_of(document), None
    if reference is not None and reference.resource is not None:
        beside = await backend.manifest(reference.resource, text(document, "metadata", "namespace"), reference.name)
    return next(jobs_in(document, beside=[beside]))


def _facts(job: JobView, stated: CheckedFacts) -> CheckedFacts:
    """Returns the supervisor's measurements. A value that the user states takes precedence."""
    measured = stated.checkpoint_seconds is None and job.checkpoint_seconds is not None
    return CheckedFacts(
        checkpoint_seconds=job.checkpoint_seconds if measured else stated.checkpoint_seconds,
        measured=measured,
        unread_seconds=job.unread_seconds,
        ranks=rank_fault(job.ranks),
        gang=job.gang,
    )


def _names_of_kinds() -> Iterator[tuple[str, CheckedKind]]:
    """Returns the names of all kinds: singular and plural, with and without the group.

    A plain `job` is a supervised one, as `-o name` prints it.
    """
    for kind, shape in SHAPES.items():
        resource = shape.resource
        for name in (resource.kind.lower(), resource.plural):
            yield f"{name}.{resource.group}", kind
            if resource.kind != "Job":
                yield name, kind
        for name in shape.short_names:
            yield name, kind


_KINDS = dict(_names_of_kinds())


def _sentences(report: CheckReport) -> Iterator[Block]:
    for checked in report.jobs:
        for finding in checked.findings:
            yield f"{checked.job} ({checked.source}): {finding.severity} {finding.rule}, at {finding.where}"
            yield f"  {finding.problem}"
            yield f"  Fix: {finding.fix}"
            yield ""


def _table(report: CheckReport) -> Iterator[Block]:
    heads = ("SEVERITY", "RULE", "JOB", "SOURCE", "WHERE", "PROBLEM", "FIX")
    rows = [
        (finding.severity, finding.rule, checked.job, checked.source, finding.where, finding.problem, finding.fix)
        for checked in report.jobs
        for finding in checked.findings
    ]
    if rows:
        yield Table(heads, rows, whole=True)
        yield ""


def _summary(report: CheckReport) -> str:
    jobs = f"{len(report.jobs)} job{'' if len(report.jobs) == 1 else 's'}"
    found = [
        f"{number} {severity}{'' if number == 1 else 's'}"
        for severity in FindingSeverity
        if (number := report.count(severity)) > 0
    ]
    return f"{jobs} checked: {listed(found) if found else 'nothing found'}."
