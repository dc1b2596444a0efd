"""The stored form of a job's spec, which the version before this one reads and writes too; and sound decisions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from supervisor.domain.job import Capability, Decision, Spec

_OPERATED = frozenset(
    {
        Capability.MAKES_HOSTS,
        Capability.STARTS_RUNS,
        Capability.GROWS,
        Capability.REPLACES_HOSTS,
        Capability.SIGNALS_PODS,
    }
)
"""The capabilities that `operated` stood for before specs listed them."""


def spec_fields(spec: Spec) -> dict[str, Any]:
    fields = msgspec.to_builtins(spec, order="deterministic")
    return {**fields, "operated": spec.can(Capability.MAKES_HOSTS)}


def spec_of(fields: Mapping[str, Any]) -> Spec:
    """Reads a spec, without the capabilities that only a later version knows.

    Raises:
        msgspec.ValidationError: A field is missing or holds something else.
    """
    before = _OPERATED if fields.get("operated") else frozenset()
    known = before if (listed := fields.get("capabilities")) is None else frozenset(Capability).intersection(listed)
    return msgspec.convert({**fields, "capabilities": known}, Spec)


def sound(decision: Decision) -> Decision:
    """A stored decision without a round that nobody can follow; the members then get another round."""
    held = decision.round
    return decision if held is None or held.is_whole else replace(decision, round=None)
