"""Writes the addresses of the dashboards in a Grafana. Pure."""

from dataclasses import dataclass
from urllib.parse import urlencode

from supervisor.domain.ids import JobName, bare_name, namespace


@dataclass(frozen=True, slots=True)
class Dashboards:
    """The dashboards below the URL of a Grafana, which ends in a slash; without one there are no addresses."""

    url: str = ""

    def job(self, job: JobName) -> str:
        """The dashboard of jobs with the variables of one job; empty without a Grafana."""
        # Without a namespace the variable stays as the dashboard has it: a stand-alone job has an empty label.
        of = {"var-job_namespace": namespace(job)} if namespace(job) else {}
        return self._address("jobs", {**of, "var-job_name": bare_name(job)})

    @property
    def reclaims(self) -> str:
        """The dashboard of reclaims; empty without a Grafana."""
        return self._address("reclaims", {})

    def _address(self, name: str, variables: dict[str, str]) -> str:
        query = f"?{urlencode(variables)}" if variables else ""
        return f"{self.url}d/elastic-job-supervisor-{name}{query}" if self.url else ""
