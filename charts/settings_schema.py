"""The settings of the services as part of the chart's schema, so that invalid values fail before an installation."""

import typing
from pathlib import Path
from typing import Any

import msgspec

from node_agent.keeper.settings import KeeperSettings
from node_agent.settings import AgentSettings
from supervisor.jobs.registry import RESOURCES
from supervisor.settings import NAMESPACE
from supervisor.settings import Settings as SupervisorSettings
from trainingjob_operator.settings import TrainingJobOperatorSettings

Schema = dict[str, Any]

SUPERVISOR_OWNED = frozenset(
    {
        "agent_account",
        "ca_config_map",
        "data_dir",
        "grpc_address",
        "http_address",
        "keeper_port",
        "keys_secret",
        "leader_election",
        "metrics_address",
        "namespace",
        "notifications_file",
        "prices_file",
        "pod_name",
        "record_url_file",
        "probe_address",
        "public_address",
        "public_ca_file",
        "store",
        "tls_cert_file",
        "tls_key_file",
        "tls_names",
        "traces",
        "webhook_address",
        "webhook_name",
    }
)
"""Settings of the supervisor that the chart sets itself."""

AGENT_OWNED = frozenset(
    {"ca_file", "metrics_address", "node_name", "probe_address", "sources", "supervisor", "token_file"}
)
"""Settings of the agent that the chart sets itself."""


OPERATOR_OWNED = frozenset({"lease", "metrics_address", "pod_name", "probe_address"})
"""Settings of the operator that the chart sets itself."""


KEEPER_OWNED = frozenset(
    {"address", "audience", "bytes", "directory", "metrics_address", "probe_address", "seconds", "tenant_bytes"}
)
"""Settings of the state keeper that the chart sets itself."""


def keeper_settings() -> Schema:
    """Return the schema of `keeper.settings`."""
    return _schema(KeeperSettings, KEEPER_OWNED)


def operator_settings() -> Schema:
    """Return the schema of `trainingJobOperator.settings`."""
    return _schema(TrainingJobOperatorSettings, OPERATOR_OWNED)


def supervisor_settings() -> Schema:
    """Return the schema of `supervisor.settings`. The settings themselves do not know the kinds of jobs."""
    schema = _schema(SupervisorSettings, SUPERVISOR_OWNED)
    schema["properties"]["kinds"]["items"] = {"enum": list(RESOURCES)}
    schema["properties"]["namespaces"]["items"] = {"type": "string", "pattern": f"^{NAMESPACE.pattern}$"}
    return schema


def agent_settings() -> Schema:
    """Return the schema of `agent.settings`."""
    return _schema(AgentSettings, AGENT_OWNED)


def camel(field: str) -> str:
    """Return a field's name in values.yaml: `window_seconds` becomes `windowSeconds`."""
    first, *others = field.split("_")
    return first + "".join(other.capitalize() for other in others)


def _schema(cls: type[Any], owned: frozenset[str]) -> Schema:
    hints = typing.get_type_hints(cls, include_extras=True)
    names = sorted(name for name in hints if name not in owned and not name.startswith("_"))
    properties = {camel(name): _property(hints[name]) for name in names}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _property(hint: Any) -> Schema:
    [schema], components = msgspec.json.schema_components([hint], schema_hook=_path)
    return _plain(_inlined(schema, components))


def _inlined(schema: Schema, components: Schema) -> Schema:
    """Resolve references. They only point to small enums."""
    if "anyOf" in schema:
        # A values file says null with an empty string.
        kept = [_inlined(each, components) for each in schema["anyOf"] if each != {"type": "null"}]
        return {**{name: value for name, value in schema.items() if name != "anyOf"}, **kept[0]}
    if "$ref" in schema:
        target = components[schema["$ref"].rpartition("/")[2]]
        return {**_inlined(target, components), **{name: value for name, value in schema.items() if name != "$ref"}}
    return {name: _inlined(value, components) if name == "items" else value for name, value in schema.items()}


def _plain(schema: Schema) -> Schema:
    kept = {name: value for name, value in schema.items() if name not in {"default", "title"}}
    if "pattern" in kept:
        # Only Python knows \\Z.
        kept["pattern"] = kept["pattern"].replace(r"\Z", "$")
    return {name: _plain(value) if name == "items" else value for name, value in kept.items()}


def _path(kind: type[Any]) -> Schema:
    if kind is Path:
        return {"type": "string"}
    raise NotImplementedError(f"a setting cannot be a {kind.__name__}")
