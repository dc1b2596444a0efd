"""Whatever templates and names contain, the body is valid JSON of the right form."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from supervisor.observability.notifications.config import MAX_TEXT, BadTemplateError, Format, MessageRenderer
from supervisor.observability.notifications.message import (
    Choice,
    NotificationKind,
    NotificationMessage,
    Occurrence,
    Origin,
    messages,
)
from tests.supervisor.observability.notifications.notifications_world import occurrence

HOSTILE = '<!channel> & "quotes" {{ 7 * 7 }} {% for %} \\ \n\x1b[31m \u202e'


def message(*occurrences: Occurrence) -> NotificationMessage:
    return next(
        messages(
            occurrences or (occurrence(),), Choice(frozenset(NotificationKind)), Origin("prod", "https://x.example/")
        )
    )


def rendered(format: Format, one: NotificationMessage | None = None, **templates: Any) -> Any:  # noqa: A002 - as in the product
    return json.loads(MessageRenderer(format, **templates).body(one or message()))


def test_slack_gets_a_text() -> None:
    assert rendered(Format.SLACK) == {
        "text": (
            "[prod] Job team/trainingjob.bert is suspended\n"
            "• Because of number 1.\n"
            "job-supervisor explain team/trainingjob.bert\n"
            "https://x.example/status/jobs/team/trainingjob.bert"
        )
    }


def test_a_webhook_gets_all_fields() -> None:
    body = rendered(Format.WEBHOOK)
    assert (body["version"], body["kind"], body["severity"], body["job"], body["drill"]) == (
        1,
        "suspended",
        "warning",
        "team/trainingjob.bert",
        False,
    )
    assert body["events"][0]["at"] == "2023-11-14T22:13:21Z"
    assert body["text"].startswith(body["title"])


def test_a_body_of_ones_own_is_filled_in_where_it_has_texts() -> None:
    """The shape is the target's: other chats want other fields."""
    body = {"msgtype": "text", "text": {"content": "{{ title }}: {{ events[0].hosts | join(', ') }}"}, "n": [1, None]}
    assert rendered(Format.WEBHOOK, body=body) == {
        "msgtype": "text",
        "text": {"content": "[prod] Job team/trainingjob.bert is suspended: n1"},
        "n": [1, None],
    }


def test_names_are_no_markup_of_slack_and_no_template() -> None:
    text = rendered(Format.SLACK, message(replace(occurrence(), text=HOSTILE)))["text"]
    assert "<" not in text
    assert "&lt;!channel&gt; &amp;" in text
    assert "{{ 7 * 7 }}" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@given(some.text(), some.text())
def test_the_body_is_always_json(said: str, title: str) -> None:
    one = replace(message(replace(occurrence(), text=said)), title=title)
    for form in Format:
        assert rendered(form, one)["text"] is not None


def test_a_long_text_is_cut() -> None:
    assert len(rendered(Format.SLACK, text="{{ 'x' * 9999 }}")["text"]) == MAX_TEXT


@pytest.mark.parametrize(
    "make",
    [
        lambda: MessageRenderer(Format.SLACK, "{% for %}"),
        lambda: MessageRenderer(Format.WEBHOOK, body={"text": "{{"}),
        lambda: MessageRenderer(Format.SLACK, "{{ nothing }}").body(message()),
        lambda: MessageRenderer(Format.SLACK, "{{ 1 / 0 }}").body(message()),
        lambda: MessageRenderer(Format.SLACK, "{{ ''.__class__.__mro__ }}").body(message()),
        lambda: MessageRenderer(Format.SLACK, "{% for i in range(10 ** 9) %}{% endfor %}").body(message()),
    ],
)
def test_a_bad_template_is_refused(make: Callable[[], object]) -> None:
    """Also one that would leave its sandbox."""
    with pytest.raises(BadTemplateError, match="template"):
        make()
