"""Release notes: the section of a version in the changelog."""

import re

from release.errors import NoReleaseError

_SECTION = re.compile(r"^## ", re.MULTILINE)
_GROUP = re.compile(r"^(?=### )", re.MULTILINE)


def notes(changelog: str, version: str) -> str:
    """Returns the section of a version, without groups that are empty.

    Raises:
        NoReleaseError: There is none, it has no date, or it is empty.
    """
    for section in _SECTION.split(changelog)[1:]:
        title, _, body = section.partition("\n")
        if title.startswith(f"[{version}]"):
            return _written(version, title, body)
    raise NoReleaseError(f"CHANGELOG.md has no section [{version}]")


def _written(version: str, title: str, body: str) -> str:
    date = re.fullmatch(rf"\[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)", title)
    if date is None:
        raise NoReleaseError(f"the section [{version}] of CHANGELOG.md has no date such as 2026-01-31")
    groups = [group.strip() for group in _GROUP.split(body)]
    kept = [group for group in groups if not group.startswith("### ") or "\n" in group]
    if not any(kept):
        raise NoReleaseError(f"the section [{version}] of CHANGELOG.md is empty")
    return "\n\n".join([f"# Elastic job supervisor {version} ({date[1]})", *filter(None, kept)]) + "\n"
