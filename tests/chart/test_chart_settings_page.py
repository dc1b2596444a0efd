"""The settings page shows what a service takes when its environment is empty."""

import re
from typing import Any

import pytest

from charts.files import written
from charts.settings_page import settings_defaults
from node_agent.settings import AgentSettings
from servicekit.settings import load
from supervisor.settings import Settings as SupervisorSettings
from trainingjob_operator.settings import TrainingJobOperatorSettings

_ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`|(required))? +\| (.+) \|$", re.MULTILINE)
_REQUIRED = {"NODE_AGENT_NODE_NAME": "n1", "NODE_AGENT_SUPERVISOR": "127.0.0.1:8470", "NODE_AGENT_TOKEN_FILE": "token"}


@pytest.mark.parametrize(
    ("cls", "prefix"),
    [
        (SupervisorSettings, "JOB_SUPERVISOR"),
        (AgentSettings, "NODE_AGENT"),
        (TrainingJobOperatorSettings, "TRAININGJOB_OPERATOR"),
    ],
)
def test_the_defaults_of_the_table_are_those_of_the_service(cls: Any, prefix: str) -> None:
    """Setting every default explicitly changes nothing."""
    table = settings_defaults(cls, prefix)
    rows = _ROW.findall(table)
    assert len(rows) == table.count("\n") - 1
    required = {name: _REQUIRED[name] for name, _, is_required, _ in rows if is_required}
    given = {name: default for name, default, is_required, _ in rows if not is_required}
    assert load(cls, prefix, given | required) == load(cls, prefix, required)


def test_the_page_has_all_tables() -> None:
    [page] = [text for path, text in written().items() if path.name == "settings.md"]
    assert "\n| `JOB_SUPERVISOR_WINDOW_SECONDS` | `1.25` |" in page
    assert "\n| `NODE_AGENT_NODE_NAME` | required |" in page
    assert "\n| `TRAININGJOB_OPERATOR_GANG` | `none` |" in page
