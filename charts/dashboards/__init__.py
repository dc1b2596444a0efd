"""The chart's Grafana dashboards as code. `python -m charts` writes them."""

from collections.abc import Mapping

from charts.dashboards import health, jobs, reclaims


def dashboards() -> Mapping[str, str]:
    """Return each dashboard's JSON by file name."""
    return {f"{page.name}.json": page.text() for page in (reclaims.page(), jobs.page(), health.page())}
