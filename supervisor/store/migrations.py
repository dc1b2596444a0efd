"""Reads what earlier versions have stored, and writes what the version before this one still reads.

A change of the stored form that an older version cannot ignore belongs here, for both stores.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from supervisor.decide.reasons import HELD_UP, following, requested
from supervisor.domain.ids import JobName
from supervisor.domain.job import WAITS, Capability, Decision, Observed, Spec, SupervisedJob
from supervisor.domain.notice import ReclaimNotice

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
    """Returns the stored form of a spec, with the field `operated` for the version before this one."""
    fields = msgspec.to_builtins(spec, order="deterministic")
    return {**fields, "operated": spec.can(Capability.MAKES_HOSTS)}


def stored_job(
    name: JobName, uid: str, spec: Mapping[str, Any], observed: Observed, decision: Decision
) -> SupervisedJob:
    """Returns a job from its stored parts.

    Its spec is without the capabilities that only a later version knows, and its decision without a round that nobody
    can follow, so that the members get another round.

    Raises:
        msgspec.ValidationError: A field of the spec is missing or holds something else.
    """
    listed, before = spec.get("capabilities"), _OPERATED if spec.get("operated") else frozenset()
    known = before if listed is None else frozenset(Capability).intersection(listed)
    if decision.round is not None and not decision.round.is_whole:
        decision = replace(decision, round=None)
    agreement = decision.agreement
    if agreement is not None and agreement.following is not None and not agreement.following.is_whole:
        decision = replace(decision, agreement=replace(agreement, following=None))
    # The version before stored what the reason is about in the sentence alone.
    request = observed.request
    if decision.request is None and request is not None and decision.reason.startswith(requested(request)):
        decision = replace(decision, request=request)
    if decision.phase in WAITS and decision.reason == following(decision.reason, HELD_UP):
        decision = replace(decision, held_up=True)
    return SupervisedJob(
        name=name,
        uid=uid,
        spec=msgspec.convert({**spec, "capabilities": known}, Spec),
        observed=observed,
        decision=decision,
    )


def migrate_notice_ids(connection: sqlite3.Connection) -> None:
    """Stores notices under ids with the subject's name: before version 2, an id had the subject's uid alone.

    Raises:
        msgspec.MsgspecError: A row does not decode.
    """
    rows = connection.execute("SELECT episode, ended_at, body FROM notices").fetchall()
    connection.execute("DELETE FROM notices")
    for episode, ended_at, body in rows:
        key = msgspec.json.decode(body, type=ReclaimNotice).id
        connection.execute("INSERT INTO notices VALUES (?, ?, ?, ?)", (key, episode, ended_at, body))
