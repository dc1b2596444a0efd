"""Renders the status as HTML. The templates escape every text of a peer.

`assets/page.js` formats the durations that it counts in the same way.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket

from servicekit.bounds import instant_of
from supervisor.domain.ids import namespace
from supervisor.domain.job import AcknowledgementKind, Phase
from supervisor.domain.worker_time import hours, percent
from supervisor.observability.groups import GroupCause, GroupOutcome
from supervisor.observability.page.comparison_contents import comparison_contents
from supervisor.observability.page.comparisons import PageComparison
from supervisor.observability.page.contents import host_state, job_contents, overview
from supervisor.observability.page.dashboards import Dashboards
from supervisor.observability.page.history_form import KINDS, SPANS, HistoryForm
from supervisor.observability.page.report_contents import PARTS, SpentTime, report_contents
from supervisor.observability.page.report_form import SPANS as REPORT_SPANS
from supervisor.observability.page.report_form import ReportForm
from supervisor.observability.page.sessions import PageSession
from supervisor.observability.record.database import HistoryPosition
from supervisor.observability.status_view import JobPageSnapshot, StatusSnapshot
from supervisor.observability.views import GroupView, HistoryView, JobView
from supervisor.refusals import readable

if TYPE_CHECKING:
    from types import CodeType

NAVIGATION: Mapping[str, str] = {
    "": "Now",
    "status/jobs": "Jobs",
    "status/nodes": "Nodes",
    "status/pools": "Pools",
    "status/history": "What happened",
    "status/drills": "Drills",
    "status/report": "Where hours went",
}
"""The addresses that every page links to, below that of the overview, each with its name."""

MAX_NAMES = 10
_MAX_LETTERS = 1000
"""Letters of a name or a sentence. Kubernetes allows 253 for a name, and a sentence contains a few names."""

_DONE: Mapping[str, str] = {
    AcknowledgementKind.SAVED: "saved",
    AcknowledgementKind.KEPT: "in the memory of hosts that stay, without a checkpoint,",
    AcknowledgementKind.LEFT: "rank 0 has left, without saying that it saved",
    AcknowledgementKind.FAILED: "not saved",
}

_CAUSES: Mapping[str, str] = {
    GroupCause.PERSON: "a person's request",
    GroupCause.QUEUE: "its queue",
    GroupCause.LAUNCHER: "its launcher, which ends",
}

_TONES = {
    Phase.RUNNING: "good",
    Phase.SHRINKING: "warn",
    Phase.STOPPING: "bad",
    Phase.SUSPENDED: "warn",
    Phase.RESUMING: "warn",
    Phase.TIMED_OUT: "bad",
}
"""The CSS classes of the marks of phases."""


def span(seconds: float) -> str:
    """Formats a duration in at most two units."""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004 - of an hour
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:  # noqa: PLR2004 - of a day
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


_NOW_SECONDS = 5.0
"""For how long what is due is due now, and not overdue."""


def countdown(seconds: float, over: str = "") -> str:
    """Formats the time until something is due, or since then, which is negative; `over` stands for the latter."""
    if seconds > 0:
        return span(seconds)
    if over:
        return over
    return "now" if seconds > -_NOW_SECONDS else f"was due {span(-seconds)} ago"


def text(said: str) -> str:
    """Removes invisible characters from a text that may quote a peer; the templates escape it."""
    return readable(said, _MAX_LETTERS)


def subject(of: str) -> tuple[str, str]:
    """Splits the subject of an entry of the history into its kind and its name."""
    kind, _, name = of.partition("/")
    return kind, name


def names(values: Sequence[str]) -> str:
    listed = ", ".join(text(value) for value in values[:MAX_NAMES])
    more = len(values) - MAX_NAMES
    return f"{listed} and {more} more" if more > 0 else listed


def why(job: JobView) -> str:
    """Returns the reason of the phase, followed by the hosts that the job lacks."""
    if job.lacks:
        return f"{job.reason} {job.lacks}"
    if job.phase is not Phase.SUSPENDED or not job.prospects:
        return job.reason
    return f"{job.reason} Next: {job.prospects[0].what}."


def announced(group: GroupView) -> str:
    """Names the sources that announced a reclaim, or another cause of the decision."""
    return names(group.sources) if group.sources else _CAUSES.get(group.cause, "nobody")


def of_reclaims(groups: Sequence[GroupView]) -> Sequence[GroupView]:
    """Selects the decisions about reclaims, and about hosts that were lost without a notice."""
    return [group for group in groups if group.cause in (GroupCause.RECLAIM, GroupCause.LOSS)]


def checkpoint(group: GroupView) -> str:
    """Describes whether and at which step rank 0 saved, how much time was left then, and how many steps were lost."""
    if group.outcome is GroupOutcome.SHRUNK:
        return "not needed"
    if group.acknowledged is None:
        return "not acknowledged"
    has_step = group.step is not None and group.acknowledged is not AcknowledgementKind.LEFT
    summary = f"{_DONE[group.acknowledged]} at step {group.step}" if has_step else _DONE[group.acknowledged]
    if group.error:
        summary += f": {text(group.error)}"
    margin, lost = group.margin_seconds, group.steps_lost
    if margin is not None:
        summary += f", {span(abs(margin))} {'too late' if margin < 0 else 'before the end'}"
    return summary if lost is None else f"{summary}; {lost} {'step' if lost == 1 else 'steps'} lost"


_PACKAGE = "supervisor.observability.page"


class _CompiledTemplates(BytecodeCache):
    """Keeps what templates were compiled to, for all renderers of a process."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledTemplates()


@dataclass(frozen=True, slots=True)
class PageAsset:
    """A static file."""

    name: str
    body: bytes
    content_type: str


class PageRenderer:
    """Renders pages.

    `docs_url` is the URL that the repository's pages are below, `grafana_url` that of the Grafana which has the
    dashboards; each is empty if nobody serves them.
    """

    def __init__(self, docs_url: str = "", grafana_url: str = "") -> None:
        types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
        found = [entry for entry in files(_PACKAGE).joinpath("assets").iterdir() if "." in entry.name]
        self.assets: Mapping[str, PageAsset] = {
            entry.name: PageAsset(entry.name, entry.read_bytes(), types[entry.name.rpartition(".")[2]])
            for entry in found
        }
        self._templates = Environment(
            loader=PackageLoader(_PACKAGE),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            bytecode_cache=_COMPILED,
        )
        filters = (
            span,
            countdown,
            names,
            checkpoint,
            text,
            subject,
            why,
            host_state,
            namespace,
            announced,
            of_reclaims,
            comparison_contents,
            hours,
            percent,
        )
        self._templates.filters.update({each.__name__: each for each in filters})
        self._templates.filters.update(
            tone=lambda phase: _TONES.get(phase, "soft"),
            instant=lambda at: instant_of(at).strftime("%Y-%m-%d %H:%M:%S UTC"),
        )
        self._templates.globals.update(docs=docs_url, navigation=NAVIGATION, dashboards=Dashboards(grafana_url))
        # The URL of an asset is relative to the page, and changes with the content of the asset.
        self._templates.globals["assets"] = {
            each.name: f"status/{each.name}?{hashlib.sha256(each.body).hexdigest()[:12]}"
            for each in self.assets.values()
        }

    async def compile(self) -> None:
        """Compiles the templates in a thread, one after the other: the first viewer of a page would wait for it."""
        for name in self._templates.list_templates():
            await asyncio.to_thread(self._templates.get_template, name)

    def render(self, template: str, **values: object) -> str:
        """Renders a template of the folder `templates`."""
        return self._templates.get_template(template).render(**values)

    def page(self, snapshot: StatusSnapshot, *, session: PageSession) -> str:
        """Renders the whole page; `session` is whose page it is."""
        shown = overview(snapshot)
        return self.render("page.html", shown=shown, view=shown.view, session=session, root="", here="")

    def content(self, snapshot: StatusSnapshot) -> str:
        """Renders the part of the page that changes."""
        shown = overview(snapshot)
        return self.render("content.html", shown=shown, view=shown.view)

    def job(self, snapshot: JobPageSnapshot, root: str, *, session: PageSession) -> str:
        """Renders the page of one job; `root` leads from its address to that of the overview."""
        shown = job_contents(snapshot)
        return self.render("job.html", shown=shown, view=shown.view, job=shown.job, session=session, root=root)

    def history(self, form: HistoryForm, happened: HistoryView | str, root: str, *, session: PageSession) -> str:
        """Renders a page of the history; `happened` is a sentence if there is none."""
        following = happened.next if isinstance(happened, HistoryView) else None
        return self.render(
            "history.html",
            form=form,
            kinds=KINDS,
            spans=SPANS,
            happened=happened,
            trouble=happened if isinstance(happened, str) else "",
            earlier=None if following is None else form.at(HistoryPosition.read(following)),
            session=session,
            root=root,
        )

    def report(
        self,
        form: ReportForm,
        spent: SpentTime | str,
        compared: PageComparison | None,
        root: str,
        *,
        session: PageSession,
    ) -> str:
        """Renders where worker-hours went; `spent` is a sentence if that is not known.

        `compared` is None if nobody has asked for a comparison.
        """
        return self.render(
            "report.html",
            form=form,
            spans=REPORT_SPANS,
            parts=PARTS,
            shown=None if isinstance(spent, str) else report_contents(spent, form.job, form.column_seconds),
            trouble=spent if isinstance(spent, str) else "",
            comparison=compared,
            session=session,
            root=root,
        )
