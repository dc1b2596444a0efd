"""Reads the file that lists the targets of notifications, and renders messages as JSON for each target."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Meta

from servicekit.bounds import instant_of
from supervisor.observability.notifications.message import NotificationKind, NotificationMessage, Origin, sample
from supervisor.refusals import readable

MAX_TEXT = 3000
"""Characters of one rendered text. Slack cuts messages at 4,000."""

_MAX_FACT = 500
_ESCAPED_BY_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""Names may come from peers: without this, one could call everybody with `<!channel>`."""

DEFAULT_TEXT = """\
{{ title }}
{% for event in events %}
• {{ event.text }}
{% endfor %}
{% if count > events | length %}
• and {{ count - events | length }} more
{% endif %}
{% if command %}
{{ command }}
{% endif %}
{% if link %}
{{ link }}
{% endif %}"""


class Format(StrEnum):
    """The form of a message that a receiver expects."""

    WEBHOOK = "webhook"
    SLACK = "slack"


class BadTemplateError(ValueError):
    """A template cannot be compiled, or fails for a message."""


class MessageRenderer:
    """Renders the body of a request.

    Args:
        format: `slack` escapes what Slack would take for markup, and posts `{"text": …}`. `webhook` posts all fields.
        text: The template of the text; empty: the default.
        body: JSON whose strings are templates, instead of the format's own body; None: the format's own.

    Raises:
        BadTemplateError: A template cannot be compiled.
    """

    def __init__(self, format: Format, text: str = "", body: Any = None) -> None:  # noqa: A002 - the name in the file
        self._escaped = _ESCAPED_BY_SLACK if format is Format.SLACK else {}
        self._text = _compiled(text or DEFAULT_TEXT)
        own: Any = {"text": "{{ text }}"} if format is Format.SLACK else None
        self._body = _mapped(own if body is None else body, _compiled)

    def body(self, message: NotificationMessage) -> bytes:
        """The body for a message.

        Raises:
            BadTemplateError: A template fails.
        """
        facts = _mapped(_facts(message), lambda text: readable(text, _MAX_FACT).translate(self._escaped))
        facts["text"] = _rendered(self._text, facts)
        if self._body is None:
            return msgspec.json.encode(facts)
        return msgspec.json.encode(_mapped(self._body, lambda template: _rendered(template, facts)))


def _facts(message: NotificationMessage) -> dict[str, Any]:
    """The fields of a message under their names in templates."""

    def instant(at: float) -> str:
        return instant_of(at).strftime("%Y-%m-%dT%H:%M:%SZ")

    events = [
        {
            "id": each.id,
            "kind": str(each.kind),
            "text": each.text,
            "at": instant(each.at),
            "namespace": each.namespace,
            "job": each.job or "",
            "hosts": list(each.hosts[:20]),
            "drill": each.drill,
        }
        for each in message.events
    ]
    return {
        "version": 1,
        "id": message.id,
        "kind": str(message.kind),
        "severity": str(message.severity),
        "title": message.title,
        "cluster": message.cluster,
        "namespace": message.namespace,
        "job": message.job,
        "drill": message.drill,
        "at": instant(message.at),
        "count": message.count,
        "events": events,
        "link": message.link,
        "command": message.command,
    }


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the same JSON, in which every string or compiled template, except for the keys, is replaced."""
    match value:
        case str() | Template():
            return change(value)
        case dict():
            return {key: _mapped(each, change) for key, each in value.items()}
        case list():
            return [_mapped(each, change) for each in value]
        case _:
            return value


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
)


def _compiled(source: str) -> Template:
    try:
        return _ENVIRONMENT.from_string(source)
    except TemplateError as error:
        raise BadTemplateError(f"the template is not valid: {error}") from error


def _rendered(template: Template, facts: Mapping[str, Any]) -> str:
    try:
        text = template.render(facts).strip()
    except Exception as error:  # A template can raise whatever an expression raises.
        raise BadTemplateError(f"the template fails: {error}") from error
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


MAX_TARGETS = 20
USUAL = tuple(kind for kind in NotificationKind if kind is not NotificationKind.NOTICE)
"""The choice by default: all kinds but notices, of which a busy cluster has many."""


class ConfigError(ValueError):
    """The file cannot be read or used; a person has to correct it."""


class NotificationTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A receiver. `url_file` contains its URL, a secret; a relative path starts at the configuration file."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?\Z")]
    url_file: Annotated[str, Meta(min_length=1)]
    format: Format = Format.WEBHOOK
    kinds: Annotated[tuple[NotificationKind, ...], Meta(min_length=1)] = USUAL
    namespaces: tuple[str, ...] = ()
    text: Annotated[str, Meta(max_length=10_000)] = ""
    body: dict[str, Any] | list[Any] | None = None

    @property
    def renderer(self) -> MessageRenderer:
        """Renders the target's messages.

        Raises:
            BadTemplateError: A template cannot be compiled.
        """
        return MessageRenderer(self.format, self.text, self.body)


class NotificationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The content of the file."""

    targets: Annotated[tuple[NotificationTarget, ...], Meta(max_length=MAX_TARGETS)] = ()
    cluster: Annotated[str, Meta(max_length=100)] = ""
    page_url: Annotated[str, Meta(pattern=r"^(https?://\S+/)?\Z")] = ""

    @property
    def origin(self) -> Origin:
        """Tells receivers where a message comes from."""
        return Origin(self.cluster, self.page_url)


def load(path: Path) -> NotificationConfig:
    """Reads and checks the file.

    Raises:
        ConfigError: The file cannot be read, is not of this form, or contains a template that is not valid.
    """
    try:
        config = msgspec.json.decode(path.read_bytes(), type=NotificationConfig)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}") from error
    names = [target.name for target in config.targets]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two targets have the same name")
    for target in config.targets:
        try:
            target.renderer.body(sample(config.origin))
        except BadTemplateError as error:
            raise ConfigError(f"{path}: target {target.name}: {error}") from error
    targets = tuple(msgspec.structs.replace(each, url_file=str(path.parent / each.url_file)) for each in config.targets)
    return msgspec.structs.replace(config, targets=targets)
