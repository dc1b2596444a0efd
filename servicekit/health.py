"""The answer to a liveness or readiness probe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Health:
    """The answer to a probe. The detail is for people; it must encode as JSON and must not name a job."""

    ok: bool
    detail: Mapping[str, Any] = field(default_factory=dict)
