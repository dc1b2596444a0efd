"""The status page: read-only, for browsers with a viewer token."""

from collections.abc import Callable
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.ingest.http import Authenticate
from supervisor.observability.page.endpoints import PageEndpoints
from supervisor.observability.page.job import JobSnapshot
from supervisor.observability.page.rendering import Renderer
from supervisor.observability.page.sessions import Sessions
from supervisor.observability.page.viewers import Viewers
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.refusals import Refusals


def status_page(  # noqa: PLR0913 - its dependencies
    *,
    snapshot: Callable[[], StatusSnapshot],
    job: Callable[[JobName], JobSnapshot | None],
    version: Callable[[], Any],
    authenticate: Authenticate,
    sign: Callable[[float], str],
    refusals: Refusals,
    clock: Clock,
    bulkhead: Bulkhead,
    docs_url: str = "",
) -> PageEndpoints:
    """Builds the endpoints of the page; their `viewers` need a root task.

    Args:
        snapshot: Reads what the page shows.
        job: Reads what the page of one job shows; None if there is no such job.
        version: Changes whenever the page should be rendered at once.
        authenticate: Identifies the sender of an Authorization header.
        sign: Makes a viewer token that is valid until an instant.
        refusals: Counts refused requests.
        clock: For the ages on the page.
        bulkhead: Keeps a rendering that raises.
        docs_url: The URL that the repository's pages are below; empty: the page links to none.
    """
    renderer = Renderer(docs_url)
    return PageEndpoints(
        snapshot=snapshot,
        job=job,
        renderer=renderer,
        viewers=Viewers(snapshot, renderer.content, version, clock, bulkhead),
        sessions=Sessions(authenticate=authenticate, sign=sign, clock=clock),
        refusals=refusals,
        clock=clock,
    )
