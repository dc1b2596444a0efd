"""The rights of kinds of jobs and of queues: parts of the supervisor's cluster role, and tables of their pages."""

from collections.abc import Iterable

from supervisor.jobs.kind import Right


def role_rules(rights: Iterable[Right]) -> str:
    """Returns the rules of a cluster role, one a right, in YAML."""
    rules = (
        f"- apiGroups: [{_quoted(right.group)}]\n"
        f"  resources: [{', '.join(right.resources)}]\n"
        f"  verbs: [{', '.join(right.verbs)}]\n"
        for right in rights
    )
    return "# Written by `make chart` from the rights that the kind declares.\n" + "".join(rules)


def rights_table(rights: Iterable[Right]) -> str:
    """Returns a Markdown table of the rights and their reasons."""
    return "\n".join(("| resource | verbs | why |", "|---|---|---|", *(_row(right) for right in rights)))


def _row(right: Right) -> str:
    resources = ", ".join(f"`{resource}`" for resource in right.resources)
    return f"| {resources}{_group(right.group)} | {', '.join(right.verbs)} | {right.reason} |"


def _quoted(group: str) -> str:
    return group or '""'


def _group(group: str) -> str:
    return f" (`{group}`)" if group else ""
