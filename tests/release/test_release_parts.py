"""The version, the notes and the chart's package."""

import re
from pathlib import Path

import pytest

from release.errors import NoReleaseError
from release.notes import notes
from release.version import check, declared

ROOT = Path(__file__).parents[2]
_CHANGELOG = """# Changelog

## [Unreleased]

### Added

- Not yet.

## [1.2.3] - 2026-01-31

The first.

### Added

- One thing.

### Removed

### Fixed

- Another.

## [1.2.2]

### Added

- No date.

## [1.2.1] - 2026-01-01

### Added
"""


def _version() -> str:
    [version] = {each for versions in declared(ROOT).values() for each in versions}
    return version


def test_every_file_declares_one_version() -> None:
    check(ROOT, _version())
    assert {name: len(versions) for name, versions in declared(ROOT).items()} == {
        "pyproject.toml": 1,
        "sdk/kubeai/elastic/version.py": 1,
        "charts/elastic-job-supervisor/Chart.yaml": 2,
        "charts/job-supervisor-hub/Chart.yaml": 2,
    }


def test_pages_name_images_and_wheels_of_that_version() -> None:
    named = {
        version
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("sdk/*.md")]
        for version in re.findall(
            r"elastic-job-supervisor(?:-agent)?:(\d+\.\d+\.\d+)|VERSION=(\d+\.\d+\.\d+)", page.read_text("utf-8")
        )
        if page.name != "CHANGELOG.md"
    }
    assert {one or other for one, other in named} == {_version()}


@pytest.mark.parametrize("wrong", ["", "1", "v1.2.3", "1.2.3/..", "1.2.3-dev"])
def test_what_is_no_version_is_refused(wrong: str) -> None:
    with pytest.raises(NoReleaseError, match="is not a version"):
        check(ROOT, wrong)


def test_a_file_of_another_version_is_named() -> None:
    with pytest.raises(NoReleaseError, match=r"pyproject\.toml declares .* and not 99\.0\.0"):
        check(ROOT, "99.0.0")


def test_notes_are_the_section_without_empty_groups() -> None:
    assert notes(_CHANGELOG, "1.2.3") == (
        "# Elastic job supervisor 1.2.3 (2026-01-31)\n\nThe first.\n\n"
        "### Added\n\n- One thing.\n\n### Fixed\n\n- Another.\n"
    )


@pytest.mark.parametrize(
    ("version", "reason"), [("1.2.4", "has no section"), ("1.2.2", "has no date"), ("1.2.1", "is empty")]
)
def test_a_version_without_notes_is_refused(version: str, reason: str) -> None:
    with pytest.raises(NoReleaseError, match=reason):
        notes(_CHANGELOG, version)


def test_the_changelog_is_in_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in sections[1:])
    known = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        groups = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert len(groups) == len(set(groups))
        assert set(groups) <= known
    assert notes(text, _version())
