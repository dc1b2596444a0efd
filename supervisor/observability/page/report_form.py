"""Reads what the form of the report's page asks for. Pure."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from supervisor.ingest.errors import MalformedError
from supervisor.observability.page.history_form import MAX_LETTERS

DAY = 86_400.0
SPANS: Mapping[str, tuple[str, float, float]] = {
    "24h": ("the last 24 hours", DAY, 3600.0),
    "7d": ("the last 7 days", 7 * DAY, DAY / 4),
    "30d": ("the last 30 days", 30 * DAY, DAY),
}
"""The spans that can be chosen, each with its name, its seconds, and the seconds of a column of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportForm:
    """The fields of the form; with an empty `job` it asks for all of them. `compare`: with other policies, too."""

    job: str = ""
    span: str = "7d"
    compare: bool = False

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "ReportForm":
        """Reads the query of an address.

        Raises:
            MalformedError: A field has none of its values. The message is a sentence.
        """
        compare = given.get("compare", "no") == "yes"
        form = cls(job=given.get("job", "").strip(), span=given.get("span", "7d"), compare=compare)
        if form.span not in SPANS:
            raise MalformedError("This address asks for something that the form does not offer.")
        if len(form.job) > MAX_LETTERS:
            raise MalformedError(f"A name has at most {MAX_LETTERS} letters.")
        return form

    @property
    def seconds(self) -> float:
        """How long the span is."""
        return SPANS[self.span][1]

    @property
    def column_seconds(self) -> float:
        """How long a column of the chart is, whole hours."""
        return SPANS[self.span][2]

    @property
    def command(self) -> str:
        """The command that prints the same, as a shell takes it."""
        return shlex.join(["job-supervisor", "report", *([self.job] if self.job else []), "--since", self.span])

    def address(self, job: str) -> str:
        """The query of the address that asks the same of one job."""
        return urlencode({"job": job, "span": self.span})
