"""The Grafana dashboards of the chart, as code: `python -m charts` writes them."""

from collections.abc import Mapping

from charts.dashboards import health, jobs, reclaims


def dashboards() -> Mapping[str, str]:
    """Each by the name of its file, as Grafana imports it."""
    return {f"{page.name}.json": page.text() for page in (reclaims.page(), jobs.page(), health.page())}
