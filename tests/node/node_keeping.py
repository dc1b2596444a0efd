"""The script of a test pod: it keeps a part in the memory of its node, and fetches it again whenever it is asked to.

Writes /checkpoint/kept with what came back, and for each file /checkpoint/ask-N /checkpoint/fetched-N.
"""

import contextlib
import json
import os
import secrets
import sys
import time
from pathlib import Path

sys.path.insert(0, "/training")

from kubeai.torch.state_keeper import KeeperClient, KeeperFailed, new_name

_HOME = Path("/checkpoint")
_SIZE = 8 << 20


def main() -> None:
    client = KeeperClient.of_this_host(os.environ)
    assert client is not None, "no KUBEAI_KEEPER"
    name, content = new_name(), secrets.token_bytes(_SIZE)
    room = client.room()
    with contextlib.suppress(KeeperFailed):
        KeeperClient(client.address, "somebody's").room()
    client.put(name, 0, [content], size=_SIZE, seconds=600.0, end=time.monotonic() + 60.0)
    _write("kept", {"keeper": client.address, "room": room.size, "whole": _fetched(client, name) == content})
    number = 0
    while True:
        if (_HOME / f"ask-{number}").exists():
            _write(f"fetched-{number}", {"whole": _fetched(client, name) == content})
            number += 1
        time.sleep(0.1)  # nothing in the pod tells of a new file


def _fetched(client: KeeperClient, name: str) -> bytes:
    """Return what the keeper has, as soon as it listens: its container may be restarting."""
    content = bytearray(_SIZE)
    until = time.monotonic() + 60.0
    while True:
        try:
            with client.get(name, 0) as fill:
                fill(memoryview(content))
            return bytes(content)
        except KeeperFailed as error:
            if time.monotonic() > until or "no such part" in str(error):
                raise
        time.sleep(0.2)  # a port that is not open yet refuses at once


def _write(name: str, told: object) -> None:
    draft = _HOME / "draft"
    draft.write_text(json.dumps(told), encoding="utf-8")
    draft.replace(_HOME / name)


if __name__ == "__main__":
    main()
