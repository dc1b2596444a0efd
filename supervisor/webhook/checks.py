"""Warns whoever creates a job of what would go wrong at a reclaim. It never changes or refuses the job."""

from collections.abc import Sequence

import msgspec

from servicekit.bounds import one_line
from supervisor.check.checking import check
from supervisor.check.job import FindingSeverity, JobFinding
from supervisor.check.manifests import jobs_in
from supervisor.cluster.annotations import opts_out
from supervisor.webhook.review import Request

_MAX_BYTES = 64 * 1024
"""A larger job is not checked: scripts are read letter by letter, 0.1 s for as many."""
_MAX_WARNINGS = 8
"""API servers drop what is longer than 4096 characters altogether."""
_LONGEST = 240


class UncheckedError(Exception):
    """The job is not checked, and created all the same."""


def warnings_for(request: Request) -> Sequence[str]:
    """What the creator of the request's job is told: errors before warnings, and no hints.

    Raises:
        UncheckedError: The job is too large, or no JSON.
    """
    if not request.creates:
        return ()
    if len(request.object) > _MAX_BYTES:
        raise UncheckedError(f"it is larger than {_MAX_BYTES // 1024} KiB")
    try:
        document = msgspec.json.decode(request.object)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UncheckedError(str(error)) from error
    jobs = [job for job in jobs_in(document) if not opts_out(job.annotations)]
    found = [each for job in jobs for each in check(job) if each.severity is not FindingSeverity.HINT]
    shown = [_sentence(each) for each in found[:_MAX_WARNINGS]]
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more; `job-supervisor check` shows all")
    return shown


def _sentence(finding: JobFinding) -> str:
    """Problem and fix if there is room for both, else the problem."""
    problem = f"{finding.problem} ({finding.rule})"
    whole = f"{problem} {finding.fix}"
    # It quotes names of the manifest, and a warning is the header of an answer.
    return one_line(whole if len(whole) <= _LONGEST else problem)[:_LONGEST]
