"""Renders the status as HTML. The templates escape every text of a peer."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from supervisor.domain.ids import namespace
from supervisor.observability.page import formatting as words
from supervisor.observability.page.contents import contents
from supervisor.observability.page.job import JobSnapshot, job_contents, state
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.observability.status_view import status_view

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PACKAGE = "supervisor.observability.page"


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file; its `address` changes with its content."""

    name: str
    body: bytes
    content_type: str

    @property
    def address(self) -> str:
        """The URL relative to the page."""
        return f"status/{self.name}?{hashlib.sha256(self.body).hexdigest()[:12]}"


class Renderer:
    """Renders pages; `docs_url` is the URL that the repository's pages are below, empty if nobody serves them."""

    def __init__(self, docs_url: str = "") -> None:
        self.assets = _assets()
        self._templates = Environment(
            loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self._templates.filters.update(
            span=words.span,
            countdown=words.countdown,
            names=words.names,
            tone=words.tone,
            workers=words.workers,
            checkpoint=words.checkpoint,
            text=words.text,
            why=words.why,
            instant=words.instant,
            short=words.short,
            address=words.address,
            host_state=state,
            namespace=namespace,
            announced=words.announced,
            of_reclaims=words.of_reclaims,
        )
        self._templates.globals["docs"] = docs_url
        self._templates.globals["assets"] = {asset.name: asset.address for asset in self.assets.values()}

    def page(self, snapshot: StatusSnapshot, *, signed_in: bool) -> str:
        """The whole page; `signed_in` shows the button that ends a browser's session."""
        return self._templates.get_template("page.html").render(**_shown(snapshot), signed_in=signed_in, root="")

    def job(self, snapshot: JobSnapshot, root: str, *, signed_in: bool) -> str:
        """The page of one job; `root` leads from its address to that of the overview."""
        shown = job_contents(snapshot)
        return self._templates.get_template("job.html").render(
            shown=shown, view=shown.view, job=shown.job, signed_in=signed_in, root=root
        )

    def no_job(self, root: str, *, signed_in: bool) -> str:
        """The page of a job that is not known."""
        return self._templates.get_template("no_job.html").render(signed_in=signed_in, root=root)

    def content(self, snapshot: StatusSnapshot) -> str:
        """The part of the page that changes."""
        return self._templates.get_template("content.html").render(**_shown(snapshot))

    def login(self, hours: int, why: str = "", root: str = "") -> str:
        """The login form; `why` is the reason why the last token was refused."""
        return self._templates.get_template("login.html").render(hours=hours, why=why, root=root)


def _shown(snapshot: StatusSnapshot) -> dict[str, object]:
    now = status_view(snapshot)
    return {"view": now, "shown": contents(now)}


def _assets() -> Mapping[str, Asset]:
    found = [entry for entry in files(_PACKAGE).joinpath("assets").iterdir() if "." in entry.name]
    return {entry.name: Asset(entry.name, entry.read_bytes(), _content_type(entry.name)) for entry in found}


def _content_type(name: str) -> str:
    return _TYPES["." + name.rpartition(".")[2]]
