"""Certificates of an authority of their own, made by openssl.

They hold what RFC 5280 asks for, which Python checks since 3.13: the authority's key usage, and the
identifiers of keys.
"""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Certificate authority in a folder.

    Args:
        folder: where its files go.
        name: common name.

    Attributes:
        ca: path of its certificate.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = folder / "ca.key"
        self.ca = folder / "ca.crt"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(self._key), "-out", str(self.ca), "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def issue(self, name: str, serial: int = 1, *more: str) -> tuple[Path, Path]:
        """Certificate and key for localhost, 127.0.0.1 and more names; paths are those of `name`."""
        cert, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        request, names = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        hosts = "".join(f",DNS:{host}" for host in more)
        names.write_text(
            f"subjectAltName=DNS:localhost,IP:127.0.0.1{hosts}\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}"),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._key)),
            *("-set_serial", str(serial), "-days", "2", "-extfile", str(names), "-out", str(cert)),
        )
        return cert, key


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
