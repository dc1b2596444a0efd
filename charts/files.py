"""The chart's generated files with their expected content."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from charts.dashboards import dashboards
from charts.hub import customization
from charts.rights import rights_table, role_rules
from charts.settings_page import settings_defaults
from charts.settings_schema import agent_settings, keeper_settings, operator_settings, supervisor_settings
from charts.values_table import settings_table, values_table
from node_agent.keeper.settings import KeeperSettings
from node_agent.settings import AgentSettings
from supervisor.jobs.gangs import RIGHTS as GANG_RIGHTS
from supervisor.jobs.kind import AnyKind, Right
from supervisor.jobs.queues.kueue.workloads import RIGHTS as KUEUE_RIGHTS
from supervisor.jobs.registry import KINDS, made_by
from supervisor.settings import Settings as SupervisorSettings
from trainingjob_operator.settings import TrainingJobOperatorSettings

CHART = Path(__file__).parent / "elastic-job-supervisor"
HUB_CHART = Path(__file__).parent / "job-supervisor-hub"
_DOCS = Path(__file__).parents[1] / "docs"
_PAGES = _DOCS / "kinds"
_KUEUE = _DOCS / "kubernetes" / "kueue.md"
_GANGS = _DOCS / "kubernetes" / "gangs.md"
_SETTINGS = _DOCS / "reference" / "settings.md"


def written() -> Mapping[Path, str]:
    """Return each generated file with its text. Hand-written parts of it are kept."""
    schema, readme = CHART / "values.schema.json", CHART / "README.md"
    boards = {CHART / "files" / "dashboards" / name: text for name, text in dashboards().items()}
    return {
        schema: _schema(schema.read_text("utf-8")),
        readme: _readme(readme.read_text("utf-8")),
        _SETTINGS: _settings_page(_SETTINGS.read_text("utf-8")),
        **boards,
        **{CHART / "files" / "kinds" / f"{kind.name}.yaml": _role_rules(kind) for kind in KINDS},
        **{page: _with_rights(page, kind.rights) for kind in KINDS if (page := _PAGES / f"{kind.name}.md")},
        **_hub_files(),
        CHART / "files" / "queues" / "kueue.yaml": role_rules(KUEUE_RIGHTS),
        CHART / "files" / "queues" / "gangs.yaml": role_rules(GANG_RIGHTS),
        _KUEUE: _with_rights(_KUEUE, KUEUE_RIGHTS),
        _GANGS: _with_rights(_GANGS, GANG_RIGHTS),
    }


def _role_rules(kind: AnyKind) -> str:
    """The rules of a kind, and of those of which its controller makes jobs: a release may have this kind alone."""
    return role_rules([*kind.rights, *(right for made in made_by(kind) for right in made.rights)])


def _hub_files() -> Mapping[Path, str]:
    """The generated files of the chart for a hub."""
    readme = HUB_CHART / "README.md"
    table = {"values": values_table((HUB_CHART / "values.yaml").read_text("utf-8"))}
    customizations = HUB_CHART / "files" / "customizations"
    return {
        readme: _with_tables(readme.read_text("utf-8"), table),
        **{customizations / f"{kind.name}.yaml": customization(kind) for kind in KINDS},
    }


def _with_rights(page: Path, rights: Iterable[Right]) -> str:
    return _replaced(page.read_text("utf-8"), "<!-- rights -->", rights_table(rights), "<!-- end of rights -->")


def _schema(present: str) -> str:
    schema = json.loads(present)
    schema["definitions"] |= {
        "supervisorSettings": supervisor_settings(),
        "agentSettings": agent_settings(),
        "keeperSettings": keeper_settings(),
        "operatorSettings": operator_settings(),
    }
    return json.dumps(schema, indent=2) + "\n"


def _readme(present: str) -> str:
    parts = {
        "values": values_table((CHART / "values.yaml").read_text("utf-8")),
        "supervisor": settings_table(supervisor_settings(), "JOB_SUPERVISOR"),
        "agent": settings_table(agent_settings(), "NODE_AGENT"),
        "keeper": settings_table(keeper_settings(), "STATE_KEEPER"),
        "operator": settings_table(operator_settings(), "TRAININGJOB_OPERATOR"),
    }
    return _with_tables(present, parts)


def _settings_page(present: str) -> str:
    parts = {
        "supervisor": settings_defaults(SupervisorSettings, "JOB_SUPERVISOR"),
        "agent": settings_defaults(AgentSettings, "NODE_AGENT"),
        "keeper": settings_defaults(KeeperSettings, "STATE_KEEPER"),
        "operator": settings_defaults(TrainingJobOperatorSettings, "TRAININGJOB_OPERATOR"),
    }
    return _with_tables(present, parts)


def _with_tables(present: str, tables: Mapping[str, str]) -> str:
    for name, table in tables.items():
        present = _replaced(present, f"<!-- {name} -->", table, f"<!-- end of {name} -->")
    return present


def _replaced(text: str, begin: str, between: str, end: str) -> str:
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{between}\n{end}", text, flags=re.DOTALL)
