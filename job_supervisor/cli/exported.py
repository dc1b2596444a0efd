"""Reads what `history -o json` has printed, and selects from it as a supervisor selects from its record."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from job_supervisor.cli.backend import PastEntry, PastQuery
from job_supervisor.cli.errors import CliUsageError, UnknownError

_JOB = "job/"


class _Exported(msgspec.Struct, frozen=True):
    entries: list[PastEntry]


def read_entries(path: Path) -> Sequence[PastEntry]:
    """Reads the entries of a file, the oldest first.

    Raises:
        UnknownError: The file cannot be read.
        CliUsageError: It is not what `history -o json` prints.
    """
    try:
        exported = msgspec.json.decode(path.read_bytes(), type=_Exported)
    except OSError as error:
        raise UnknownError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise CliUsageError(f"{path} is not what `job-supervisor history -o json` prints: {error}.") from error
    return sorted(exported.entries, key=lambda entry: entry.at)


def selected(entries: Sequence[PastEntry], wanted: PastQuery) -> Sequence[PastEntry]:
    """Returns the wanted entries in their order, those of a job with the notices that they concern."""
    kept = [entry for entry in entries if wanted.wants(entry)]
    subject = next((f"{kind}/{name}" for kind, name in wanted.subjects if name is not None), None)
    if subject is None:
        return kept
    about = [entry for entry in kept if subject in (entry.subject, *entry.concerns)]
    if not subject.startswith(_JOB):
        return about
    concerned = {each for entry in about for each in entry.concerns}
    return [entry for entry in kept if entry.subject in concerned or subject in (entry.subject, *entry.concerns)]
