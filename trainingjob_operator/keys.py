"""Makes the ssh keys of a job."""

import base64
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_CONFIG = b"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
"""Workers come and go under addresses that were others' before; the network of the job's pods is what is trusted."""


def new_keys() -> Mapping[str, str]:
    """Returns the data of a Secret with a new pair of keys and the configuration of ssh, in base64."""
    key = Ed25519PrivateKey.generate()
    files = {
        # The usual name, which ssh tries without being told.
        "id_rsa": key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        "id_rsa.pub": key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        "config": _CONFIG,
    }
    return {name: base64.b64encode(content).decode() for name, content in files.items()}
