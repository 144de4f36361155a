"""Metrics of the product as Prometheus reads them: the page of a process, and single values."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from pathlib import Path

from tests.serving.certificates import Authority
from tests.waiting import left_s


def trusting(authority: Authority, *own: Path) -> ssl.SSLContext:
    """Context of a client that trusts the authority, with a certificate and key of its own or without."""
    context = ssl.create_default_context(cafile=authority.ca)
    if own:
        context.load_cert_chain(*own)
    return context


def scrape(port: int, context: ssl.SSLContext | None = None) -> str:
    scheme = "http" if context is None else "https"
    with urllib.request.urlopen(
        f"{scheme}://127.0.0.1:{port}/metrics", timeout=left_s(), context=context
    ) as answer:
        assert answer.status == 200
        return str(answer.read().decode())


REFUSED = (OSError, http.client.HTTPException)
