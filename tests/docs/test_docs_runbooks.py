"""Every alert has a runbook."""

import re
from pathlib import Path

from tests.testkit.yaml_text import document

ROOT = Path(__file__).parents[2]
_PAGES = ROOT / "docs" / "runbooks"
_ALERTS = ROOT / "charts" / "elastic-job-supervisor" / "files" / "rules" / "alerts.yaml"
_LINKS = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def _runbooks() -> dict[str, str]:
    groups = document(_ALERTS.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    runbooks = _runbooks()
    assert runbooks
    assert runbooks == {page.stem: f"docs/runbooks/{page.name}" for page in _PAGES.glob("*.md")}


def test_every_page_says_what_it_means_what_to_check_and_what_to_do() -> None:
    for name, page in _runbooks().items():
        text = (ROOT / page).read_text("utf-8")
        assert text.startswith(f"# {name}\n")
        assert re.findall(r"^\*\*(.*)\*\*", text, re.MULTILINE) == ["What it means.", "What to check.", "What to do."]
        assert re.search(r"^```sh\n(?:kubectl|df|curl) ", text, re.MULTILINE)
        assert not [link for link in _LINKS.findall(text) if not (_PAGES / link).is_file()]


def test_every_alert_is_listed_where_dashboards_are_described() -> None:
    listed = set(_LINKS.findall((ROOT / "docs" / "guide" / "dashboards.md").read_text("utf-8")))
    assert {f"../runbooks/{name}.md" for name in _runbooks()} <= listed
