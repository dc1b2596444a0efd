"""Serves what people can ask for on the page: first a form that says what will happen, then what the form asks for."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import structlog
from aiohttp import web

from servicekit.clock import Clock
from servicekit.rate import TokenBuckets
from supervisor.decide import registration
from supervisor.domain.asking import NotPermittedError, NotTakenError, UncertainError, UnknownSubjectError
from supervisor.identity.people import Steering
from supervisor.identity.tokens import AuthenticationUnavailableError
from supervisor.ingest.errors import CODES, MalformedError, OversizedError, TooManyError, UnknownNodeError
from supervisor.observability.history import HistoryEntry
from supervisor.observability.page.action_form import ActionForm
from supervisor.observability.page.answers import html_page, page_root, see_other
from supervisor.observability.page.forms import posted
from supervisor.observability.page.gate import PageGate
from supervisor.observability.page.rendering import PageRenderer
from supervisor.observability.page.sessions import PageSession
from supervisor.observability.status_view import StatusSnapshot, status_view
from supervisor.observability.views import StatusView
from supervisor.refusals import Refusals, Wire
from supervisor.store.interface import StoreUnavailableError

ASKED = "asked for"
"""What happened, in the history: a person has asked for something."""

_BURST, _EACH_SECONDS = 20, 6.0
"""How often one person may open a form, and send one: so many times at once, and then once in that time."""

_REFUSED: Mapping[type[Exception], tuple[int, str]] = {
    MalformedError: (400, ""),
    OversizedError: (413, "The form is too large."),
    NotPermittedError: (403, ""),
    registration.UnknownJobError: (404, "There is no such job."),
    UnknownNodeError: (404, "No agent of such a node is known."),
    UnknownSubjectError: (404, ""),
    registration.JobIsOverError: (409, "The job has ended."),
    registration.JobEndsError: (409, "The job is being stopped: to resume it takes that back."),
    TooManyError: (429, "You have asked for too much in a short time. Try again in a minute."),
    AuthenticationUnavailableError: (503, "Your rights cannot be checked right now. Try again."),
    StoreUnavailableError: (503, "Nothing can be stored right now. Try again."),
    NotTakenError: (409, ""),
    UncertainError: (503, ""),
}
"""The status and the sentence for each refusal; without a sentence the refusal's own is shown."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEndpoints:
    """`/status/actions/…`: GET shows the form and changes nothing, POST carries it out and keeps who has asked."""

    gate: PageGate
    steering: Steering
    snapshot: Callable[[], StatusSnapshot]
    audit: Callable[[HistoryEntry], None]
    renderer: PageRenderer
    refusals: Refusals
    clock: Clock
    acting: TokenBuckets
    looking: TokenBuckets

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/status/actions/{action}", self.form), web.post("/status/actions/{action}", self.act)]

    async def form(self, request: web.Request) -> web.Response:
        """Serves the form of an action, or the sentence that says why it cannot be asked for."""
        session = await self.gate.session(request)
        if isinstance(session, web.Response):
            return session
        form = None
        try:
            form = ActionForm.read(request.match_info["action"], request.query)
            if not session.acts:
                raise NotPermittedError("A viewer may look and do nothing. Sign in as somebody who may.")
            if form.name:
                self._take(self.looking, session)
                await self.steering.permit(session.who, form.asked())
        except tuple(_REFUSED) as error:
            return await self._refused(request, session, form, error)
        return await self._shown(request, session, form)

    async def act(self, request: web.Request) -> web.Response:
        """Carries out what the form asks for, and leads to the page of its subject."""
        session = await self.gate.session(request)
        if isinstance(session, web.Response):
            return session
        form = None
        try:
            fields = await posted(request)
            form = ActionForm.read(request.match_info["action"], fields)
            self.gate.sessions.check_form(session, form.purposes, fields.get("form", ""))
            asked = form.asked()
            self._take(self.acting, session)
            carry_out = await self.steering.permit(session.who, asked)
        except tuple(_REFUSED) as error:
            return await self._refused(request, session, form, error)
        # Before it is done: whoever does not wait for the answer has asked for it all the same.
        self._keep(session, form)
        try:
            await carry_out()
        except tuple(_REFUSED) as error:
            self._keep(session, form, but=_sentence(error)[1])
            return await self._refused(request, session, form, error)
        return see_other(f"{page_root(request)}{_page_of(form)}")

    def _take(self, limit: TokenBuckets, session: PageSession) -> None:
        if limit.take(session.identity, self.clock.monotonic()):
            raise TooManyError(f"{session.name} asks for too much")

    def _keep(self, session: PageSession, form: ActionForm, but: str = "") -> None:
        """Keeps what somebody has asked for; `but` says why it was not done."""
        text = form.text
        lead = "" if form.minutes is None else f", {form.minutes:g} minutes ahead"
        why = f": {form.reason.rstrip('.')}" if form.reason else ""
        said = f"{session.name} {text.done}{lead} on the page{why}." + (f" That was not done: {but}" if but else "")
        self.audit(HistoryEntry(at=self.clock.now(), subject=form.subject, what=ASKED, text=said))
        _log.warning("page.asked", by=session.name, action=form.action, subject=form.subject, refused=but)

    async def _shown(
        self, request: web.Request, session: PageSession, form: ActionForm, why: str = "", status: int = 200
    ) -> web.Response:
        # Only what is asked of a node concerns others.
        snapshot = self.snapshot() if form.text.subject == "node" else None

        def rendered() -> str:
            view = None if snapshot is None else status_view(snapshot)
            return self.renderer.render(
                "action.html",
                form=form,
                token=self.gate.sessions.form_token(session, form.purposes[0]),
                jobs=[] if view is None else _concerned(view, form),
                present=[] if view is None else _present(view, form),
                why=why,
                session=session,
                root=page_root(request),
            )

        # In a thread: there may be thousands of nodes and jobs.
        return html_page(await asyncio.to_thread(rendered), status)

    async def _refused(
        self, request: web.Request, session: PageSession, form: ActionForm | None, error: Exception
    ) -> web.Response:
        self.refusals.add(Wire.HTTP, CODES[type(error)], str(error))
        status, why = _sentence(error)
        if form is None or isinstance(error, NotPermittedError):
            text = self.renderer.render("refused.html", why=why, session=session, root=page_root(request))
            return html_page(text, status)
        return await self._shown(request, session, form, why, status)


def _limit() -> TokenBuckets:
    return TokenBuckets(rate=1 / _EACH_SECONDS, burst=_BURST)


def action_endpoints(  # noqa: PLR0913 - its dependencies
    *,
    gate: PageGate,
    steering: Steering,
    snapshot: Callable[[], StatusSnapshot],
    audit: Callable[[HistoryEntry], None],
    renderer: PageRenderer,
    refusals: Refusals,
    clock: Clock,
) -> ActionEndpoints:
    """Builds the endpoints; `audit` keeps an entry about what a person has asked for."""
    return ActionEndpoints(
        gate=gate,
        steering=steering,
        snapshot=snapshot,
        audit=audit,
        renderer=renderer,
        refusals=refusals,
        clock=clock,
        acting=_limit(),
        looking=_limit(),
    )


def _page_of(form: ActionForm) -> str:
    """The address of the page that shows what becomes of what a form asked for, seen from the root of the page."""
    if form.text.subject == "job":
        return f"status/jobs/{quote(form.name)}"
    return f"status/nodes/{quote(form.name)}"


def _sentence(error: Exception) -> tuple[int, str]:
    """The status and the sentence of a refusal."""
    status, sentence = next(_REFUSED[kind] for kind in type(error).__mro__ if kind in _REFUSED)
    return status, sentence or str(error)


def _present(view: StatusView, form: ActionForm) -> list[str]:
    """The nodes on which what the form asks for is going on."""
    if form.text.source is None:
        return []
    return sorted(
        notice.subject
        for notice in view.notices
        if notice.source == form.text.source and notice.state == "active" and notice.kind == "node"
    )


def _concerned(view: StatusView, form: ActionForm) -> list[str]:
    """The jobs that have a worker on the node that a form names."""
    return sorted(
        job.job
        for job in view.jobs
        if any(host.worker and form.name in (host.node, host.host) for host in job.host_states)
    )
