"""Reads what the form of the history page asks for, and writes the addresses of its other pages. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from supervisor.domain.capacity import MachinePool
from supervisor.ingest.errors import MalformedError
from supervisor.observability.history import SUBJECT_KINDS
from supervisor.observability.page.contents import MAX_ROWS
from supervisor.observability.record.database import HistoryPosition, HistoryQuery

KINDS: Mapping[str, str] = {kind: "capacity pool" if kind == "pool" else kind for kind in SUBJECT_KINDS}
"""The kinds of subjects with a history, each with its name for people."""

SPANS: Mapping[str, tuple[str, float | None]] = {
    "1h": ("the last hour", 3600.0),
    "24h": ("the last 24 hours", 86_400.0),
    "7d": ("the last 7 days", 7 * 86_400.0),
    "30d": ("the last 30 days", 30 * 86_400.0),
    "all": ("all that is kept", None),
}
"""The spans that can be chosen, each with its name and its seconds."""

MAX_LETTERS = 2400
"""A capacity pool's name has three parts of 253 letters, each of which may be escaped by three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryForm:
    """The fields of the form; with an empty `name` it asks for everything, and with an empty `source` for all of them.

    `before` is the position before which a page ends; None: the page ends now.
    """

    kind: str = "job"
    name: str = ""
    source: str = ""
    span: str = "7d"
    drills: bool = True
    before: HistoryPosition | None = None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "HistoryForm":
        """Reads the query of an address.

        Raises:
            MalformedError: A field has none of its values. The message is a sentence.
        """
        form = cls(
            kind=given.get("kind", "job"),
            name=given.get("name", "").strip(),
            source=given.get("source", "").strip(),
            span=given.get("span", "7d"),
            drills=given.get("drills", "yes") != "no",
        )
        if form.kind not in KINDS or form.span not in SPANS:
            raise MalformedError("This address asks for something that the form does not offer.")
        if max(len(form.name), len(form.source)) > MAX_LETTERS:
            raise MalformedError(f"A name has at most {MAX_LETTERS} letters.")
        form = form._canonical()
        if "before" not in given:
            return form
        try:
            return form.at(HistoryPosition.read(given["before"]))
        except (ValueError, OverflowError) as error:
            raise MalformedError("This address names no page of the history.") from error

    def _canonical(self) -> "HistoryForm":
        """The same form with the name that the record has, where another one is read as the same."""
        if self.kind != "pool" or not self.name:
            return self
        try:
            return replace(self, name=MachinePool.named(self.name).name)
        except ValueError as error:
            raise MalformedError("A capacity pool is named CLOUD/ZONE/TYPE.") from error

    def at(self, before: HistoryPosition | None) -> "HistoryForm":
        """The same question about the entries before a position."""
        return replace(self, before=before)

    def query(self, now: float) -> HistoryQuery:
        """Returns what the form asks of the record at that instant (Unix seconds)."""
        _, seconds = SPANS[self.span]
        return HistoryQuery(
            subject=f"{self.kind}/{self.name}" if self.name else "",
            source=self.source,
            since=None if seconds is None else now - seconds,
            drills=self.drills,
            before=self.before,
            limit=MAX_ROWS,
        )

    @property
    def address(self) -> str:
        """The query of the address that asks the same."""
        before = {} if self.before is None else {"before": str(self.before)}
        drills = {} if self.drills else {"drills": "no"}
        fields = {"kind": self.kind, "name": self.name, "source": self.source, "span": self.span}
        return urlencode({**fields, **drills, **before})
