"""Renders messages as JSON. Templates fill in texts only, so the body is always valid JSON."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from servicekit.bounds import instant_of
from supervisor.observability.notifications.message import Happening, Message
from supervisor.refusals import readable

MAX_TEXT = 3000
"""Characters of one rendered text. Slack cuts messages at 4,000."""

_MAX_FACT = 500

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
    """What a receiver expects."""

    WEBHOOK = "webhook"
    SLACK = "slack"


class BadTemplateError(ValueError):
    """A template cannot be compiled, or fails for a message."""


class Renderer:
    """Renders the body of a request.

    Args:
        format: `slack` escapes what Slack would take for markup, and posts `{"text": …}`. `webhook` posts all fields.
        text: The template of the text; empty: the default.
        body: JSON whose strings are templates, instead of the format's own body; None: the format's own.

    Raises:
        BadTemplateError: A template cannot be compiled.
    """

    def __init__(self, format: Format, text: str = "", body: Any = None) -> None:  # noqa: A002 - the name in the file
        self._escape = _slack if format is Format.SLACK else _plain
        self._text = _compiled(text or DEFAULT_TEXT)
        own: Any = {"text": "{{ text }}"} if format is Format.SLACK else None
        self._body = _mapped(own if body is None else body, _compiled)

    def body(self, message: Message) -> bytes:
        """The body for a message.

        Raises:
            BadTemplateError: A template fails.
        """
        facts = _escaped(_facts(message), self._escape)
        facts["text"] = _rendered(self._text, facts)
        if self._body is None:
            return msgspec.json.encode(facts)
        return msgspec.json.encode(_filled(self._body, facts))


def _facts(message: Message) -> dict[str, Any]:
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
        "at": _instant(message.at),
        "count": message.count,
        "events": [_event(each) for each in message.events],
        "link": message.link,
        "command": message.command,
    }


def _event(happening: Happening) -> dict[str, Any]:
    return {
        "id": happening.id,
        "kind": str(happening.kind),
        "text": happening.text,
        "at": _instant(happening.at),
        "namespace": happening.namespace,
        "job": happening.job or "",
        "hosts": list(happening.hosts[:20]),
        "drill": happening.drill,
    }


def _instant(at: float) -> str:
    return instant_of(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def _plain(text: str) -> str:
    return readable(text, _MAX_FACT)


def _slack(text: str) -> str:
    """Names may come from peers: without this, one could call everybody with `<!channel>`."""
    return _plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escaped(value: Any, escape: Callable[[str], str]) -> Any:
    return _mapped(value, escape)


def _mapped(value: Any, change: Callable[[str], Any]) -> Any:
    """The same JSON with every string, but not the keys, replaced."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: _mapped(each, change) for key, each in value.items()}
        case list():
            return [_mapped(each, change) for each in value]
        case _:
            return value


def _filled(value: Any, facts: Mapping[str, Any]) -> Any:
    match value:
        case Template():
            return _rendered(value, facts)
        case dict():
            return {key: _filled(each, facts) for key, each in value.items()}
        case list():
            return [_filled(each, facts) for each in value]
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
