"""Certificates for a world with TLS, updated like a Kubernetes secret volume: one symbolic link switches all files."""

import itertools
from pathlib import Path

import trustme

NAMES = ("localhost", "127.0.0.1", "::1")


class SimulatedAuthority:
    """A certificate authority and the supervisor's certificate.

    Args:
        directory: Created, with `tls.crt`, `tls.key` and `ca.crt` in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._versions = itertools.count()
        self.ca = trustme.CA()
        directory.mkdir(parents=True)
        for file in (self.cert_file, self.key_file):
            file.symlink_to(Path("..data", file.name))
        self.ca_file.write_bytes(self.ca_pem)
        self.issue()

    @property
    def cert_file(self) -> Path:
        return self._directory / "tls.crt"

    @property
    def key_file(self) -> Path:
        return self._directory / "tls.key"

    @property
    def ca_file(self) -> Path:
        return self._directory / "ca.crt"

    @property
    def ca_pem(self) -> bytes:
        return self.ca.cert_pem.bytes()

    def issue(self, *names: str, ca: trustme.CA | None = None) -> bytes:
        """Rotate the certificate, for these names or this machine's, and return the leaf as PEM."""
        leaf = (ca or self.ca).issue_cert(*(names or NAMES))
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        self.place(chain, leaf.private_key_pem.bytes())
        return leaf.cert_chain_pems[0].bytes()

    def spoil(self) -> None:
        """Install a new certificate with a key that does not match."""
        leaf, other = self.ca.issue_cert(*NAMES), self.ca.issue_cert(*NAMES)
        self.place(leaf.cert_chain_pems[0].bytes(), other.private_key_pem.bytes())

    def place(self, certificate: bytes, key: bytes) -> None:
        """Replace both files atomically."""
        version = self._directory / f"..{next(self._versions)}"
        version.mkdir(mode=0o700)
        (version / self.cert_file.name).write_bytes(certificate)
        (version / self.key_file.name).write_bytes(key)
        draft = self._directory / "..data_tmp"
        draft.symlink_to(version.name)
        draft.replace(self._directory / "..data")
