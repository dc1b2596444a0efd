"""Makes the sources of the settings."""

import contextlib
from collections.abc import AsyncIterator, Callable

from node_agent.settings import Settings, SourceKind
from node_agent.sources import CloudSource, Source
from node_agent.sources.aliyun import AliyunSource
from node_agent.sources.aws import AwsSource
from node_agent.sources.azure import AzureSource
from node_agent.sources.file import FileSource
from node_agent.sources.gcp import GcpSource
from node_agent.sources.tencent import TencentSource
from node_agent.sources.volcengine import VolcengineSource
from servicekit.clock import Clock

CLOUDS = tuple(kind for kind in SourceKind if kind not in {SourceKind.AUTO, SourceKind.FILE})


class SourceFactory:
    """Makes sources, each of which is closed at the end of its context.

    Args:
        settings: Addresses and modes.
        clock: For the sources.
        may_start: Whether an event of an Azure VM may start now; asked only where the settings ask to acknowledge.
    """

    def __init__(self, settings: Settings, clock: Clock, may_start: Callable[[], bool]) -> None:
        self._settings = settings
        self._clock = clock
        self._may_start = may_start

    @contextlib.asynccontextmanager
    async def source(self, kind: SourceKind) -> AsyncIterator[Source]:
        """Makes any source but `auto`, which chooses among `clouds`."""
        if kind is SourceKind.FILE and self._settings.file_path is not None:
            yield FileSource(self._settings.file_path, self._clock)
            return
        cloud = self._cloud(kind)
        try:
            yield cloud
        finally:
            await cloud.close()

    @contextlib.asynccontextmanager
    async def clouds(self) -> AsyncIterator[list[CloudSource]]:
        """Makes the sources of all clouds."""
        clouds = [self._cloud(kind) for kind in CLOUDS]
        try:
            yield clouds
        finally:
            for cloud in clouds:
                await cloud.close()

    def _cloud(self, kind: SourceKind) -> CloudSource:
        settings, clock = self._settings, self._clock
        match kind:
            case SourceKind.ALIYUN:
                return AliyunSource(settings.metadata_url, settings.metadata_mode, clock)
            case SourceKind.AWS:
                return AwsSource(settings.aws_metadata_url, clock)
            case SourceKind.AZURE:
                return AzureSource(settings.azure_metadata_url, clock, self._may_acknowledge)
            case SourceKind.GCP:
                return GcpSource(settings.gcp_metadata_url, clock)
            case SourceKind.TENCENT:
                return TencentSource(settings.tencent_metadata_url, clock)
            case SourceKind.VOLCENGINE:
                return VolcengineSource(settings.volcengine_metadata_url, settings.volcengine_metadata_mode, clock)
            case _:
                raise ValueError(f"source {kind} is not set up")

    def _may_acknowledge(self) -> bool:
        return self._settings.azure_acknowledge and self._may_start()
