"""The Secret with the keys: created by the first supervisor, and never written again."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import structlog

from servicekit.clock import Clock
from servicekit.faults import Backoff, Fault
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiError, ApiUnavailableError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.pki.errors import KeysError
from supervisor.pki.keys import Keys

_SECRETS = Resource(group="", version="v1", kind="Secret", plural="secrets", namespaced=True)
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 1.0

_log = structlog.get_logger()


class _Secret(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: Mapping[str, bytes] | None = None


def _read(data: bytes | msgspec.Raw) -> _Secret:
    return msgspec.json.decode(data, type=_Secret)


class KeysSecret:
    def __init__(self, server: ApiServer, secret: ObjectKey, clock: Clock) -> None:
        self._secrets = ResourceClient(server, _SECRETS, _read)
        self._key = secret
        self._clock = clock
        self._fault = Fault("API server", clock)

    async def first(self) -> Keys:
        """Like `obtain`, but waits for an unavailable API server.

        Raises:
            KeysError: See `obtain`.
        """
        backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        while True:
            try:
                keys = await self.obtain()
            except ApiUnavailableError as error:
                self._fault.failed(str(error))
                await asyncio.sleep(backoff.next())
            else:
                self._fault.recovered()
                return keys

    async def obtain(self, known: Keys | None = None) -> Keys:
        """Reads the keys. If there is no Secret, creates it with the `known` keys, or else with new ones.

        Raises:
            KeysError: The content is invalid (and is not changed), or the Secret may not be read or created.
            ApiUnavailableError: The API server does not answer.
        """
        try:
            while (present := await self._present()) is None:
                with suppress(ConflictError):  # Another supervisor was first; read its keys.
                    return await self._make(known or Keys.make(self._clock.now()))
        except ApiUnavailableError:
            raise
        except ApiError as error:
            raise KeysError(f"{self}: {error}") from error
        return present

    async def _present(self) -> Keys | None:
        try:
            secret = await self._secrets.get(self._key)
            return Keys.read(secret.data or {}, self._clock.now())
        except NotFoundError:
            return None
        except KeysError as error:
            raise KeysError(f"{self}: {error}. The supervisor does not change it: correct or restore it") from error

    async def _make(self, keys: Keys) -> Keys:
        await self._secrets.create(self._key, {"type": "Opaque", "data": keys.content})
        _log.info("keys.made", secret=self._key.name, namespace=self._key.namespace)
        return keys

    def __str__(self) -> str:
        return f"Secret {self._key.name} in namespace {self._key.namespace}"
