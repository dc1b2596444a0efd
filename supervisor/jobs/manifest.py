"""The parts of a job's object that all kinds read in the same way."""

from datetime import datetime

from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.podspec import Body


class ObjectMetadata(Body, frozen=True):
    """The metadata of a job as the API server sends them."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None

    @property
    def identity(self) -> Metadata:
        """The part that is kept."""
        return Metadata(
            name=self.name,
            uid=self.uid,
            resource_version=self.resource_version,
            namespace=self.namespace,
            creation_timestamp=self.creation_timestamp,
        )
