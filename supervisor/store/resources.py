"""What the custom resources have in common.

Fields are those of charts/elastic-job-supervisor/files/crds/. A value's instants come back rounded to a microsecond.
"""

from datetime import UTC, datetime

import msgspec

GROUP = "job-supervisor.kube-ai.io"
VERSION = "v1alpha1"


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What has no value is left out; what has no default here is always written."""


class Condition(Body, frozen=True, kw_only=True):
    """A condition of the usual form.

    Without observedGeneration: kubectl wait would not believe it from a change of the spec alone to the next change of
    the status, and that would take one more write.
    """

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: datetime


def truth(*, holds: bool) -> str:
    """As a condition says it."""
    return "True" if holds else "False"


def instant(seconds: float) -> datetime:
    """From Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC)


def maybe(seconds: float | None) -> datetime | None:
    """From Unix seconds, if there are any."""
    return None if seconds is None else instant(seconds)


def seconds(at: datetime | None) -> float | None:
    """Unix seconds, if there is an instant."""
    return None if at is None else at.timestamp()
