"""Requests to plan jobs although nothing that is stored about them has changed."""

from collections.abc import Callable

from supervisor.domain.ids import JobName


class PlanRequests:
    """Collects jobs until the next pass; `on_request` is called with every request."""

    def __init__(self, on_request: Callable[[], None]) -> None:
        self._jobs: set[JobName] = set()
        self._on_request = on_request

    def add(self, job: JobName) -> None:
        """Requests that the next pass plans the job."""
        self._jobs.add(job)
        self._on_request()

    def take(self) -> set[JobName]:
        """Returns all jobs that were added since the last call."""
        jobs, self._jobs = self._jobs, set()
        return jobs
