"""The status page: read-only, for people with a viewer's token and a browser."""

from collections.abc import Callable
from typing import Any

from servicekit.clock import Clock
from supervisor.ingest.http import Authenticate
from supervisor.observability.page.endpoints import PageEndpoints
from supervisor.observability.page.rendering import Renderer
from supervisor.observability.page.sessions import Sessions
from supervisor.observability.page.viewers import Viewers
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.refusals import Refusals


def status_page(  # noqa: PLR0913 - what it needs of the supervisor
    *,
    snapshot: Callable[[], StatusSnapshot],
    version: Callable[[], Any],
    authenticate: Authenticate,
    sign: Callable[[float], str],
    refusals: Refusals,
    clock: Clock,
) -> PageEndpoints:
    """The endpoints, whose `viewers` have a root task; the arguments are those of the parts."""
    renderer = Renderer()
    return PageEndpoints(
        snapshot=snapshot,
        renderer=renderer,
        viewers=Viewers(snapshot, renderer.content, version, clock),
        sessions=Sessions(authenticate=authenticate, sign=sign, clock=clock),
        refusals=refusals,
        clock=clock,
    )
