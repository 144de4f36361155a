"""Metrics of the product as Prometheus reads them: the page of a process, and single values."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from tests.serving.certificates import Authority
from tests.waiting import left_s

REFUSED = (OSError, http.client.HTTPException)
"""Errors of a client that the endpoint does not answer."""


def metric_value(metric: str | MetricWrapperBase, **labels: str) -> float:
    """Read a value from the metrics of this process, as its page shows it.

    Args:
        metric: a counter or gauge, or the name of a sample, such as `livectr_redis_seconds_count`.
        labels: all labels of the sample.

    Returns:
        0.0 if the metric has no sample with these labels.

    Raises:
        AssertionError: no metric has such a sample.
    """
    if not isinstance(metric, str):
        (about,) = metric.describe()
        metric = about.name + ("_total" if about.type == "counter" else "")
    names = set()
    for family in REGISTRY.collect():
        names |= {family.name + end for end in ("", "_total", "_count", "_sum", "_bucket")}
        for sample in family.samples:
            if sample.name == metric and sample.labels == labels:
                return float(sample.value)
    assert metric in names, f"the page has no metric {metric}"
    return 0.0


def trusting(authority: Authority, *own: Path) -> ssl.SSLContext:
    """Context of a client that trusts the authority, with a certificate and key of its own or without."""
    context = ssl.create_default_context(cafile=authority.ca)
    if own:
        certificate, key = own
        context.load_cert_chain(certificate, key)
    return context


def scrape(port: int, context: ssl.SSLContext | None = None) -> str:
    """Metrics page of a process on this machine; by https with a context."""
    scheme = "http" if context is None else "https"
    with urllib.request.urlopen(
        f"{scheme}://127.0.0.1:{port}/metrics", timeout=left_s(), context=context
    ) as answer:
        assert answer.status == 200
        return str(answer.read().decode())
