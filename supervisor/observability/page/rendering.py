"""From a view to HTML. Everything that a peer has said is escaped by the templates."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined

from supervisor.observability.page import formatting as words
from supervisor.observability.page.contents import contents
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.observability.status_view import status_view

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_PACKAGE = "supervisor.observability.page"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that the page refers to by `address`, which is another one when the file is."""

    name: str
    body: bytes
    content_type: str

    @property
    def address(self) -> str:
        """Relative to the page."""
        return f"status/{self.name}?{hashlib.sha256(self.body).hexdigest()[:12]}"


class Renderer:
    """The templates, read once."""

    def __init__(self) -> None:
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
        )
        self._templates.globals["assets"] = {asset.name: asset.address for asset in self.assets.values()}

    def page(self, seen: StatusSnapshot, *, signed_in: bool) -> str:
        """The whole page; `signed_in` by a cookie, which can be given up."""
        return self._templates.get_template("page.html").render(**_shown(seen), signed_in=signed_in)

    def content(self, seen: StatusSnapshot) -> str:
        """What changes of it."""
        return self._templates.get_template("content.html").render(**_shown(seen))

    def login(self, hours: int, why: str = "") -> str:
        """The form that asks for a token; `why` the last one was no good."""
        return self._templates.get_template("login.html").render(hours=hours, why=why)


def _shown(seen: StatusSnapshot) -> dict[str, object]:
    now = status_view(seen)
    return {"view": now, "shown": contents(now)}


def _assets() -> Mapping[str, Asset]:
    found = [entry for entry in files(_PACKAGE).joinpath("assets").iterdir() if "." in entry.name]
    return {entry.name: Asset(entry.name, entry.read_bytes(), _content_type(entry.name)) for entry in found}


def _content_type(name: str) -> str:
    return _TYPES["." + name.rpartition(".")[2]]
