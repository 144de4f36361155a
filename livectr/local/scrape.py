"""Reading the Prometheus endpoints of processes."""

import math
import ssl
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from livectr.system.errors import ConnectError, reason_of

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""(sample name, sorted labels) → value."""


def scrape(port: int, timeout_s: float = 1.0) -> Samples | None:
    """Samples of the endpoint at 127.0.0.1:`port`; None when nobody answers."""
    try:
        return read_metrics(f"127.0.0.1:{port}", timeout_s)
    except ConnectError:
        return None


def read_metrics(address: str, timeout_s: float = 2.0, tls: ssl.SSLContext | None = None) -> Samples:
    """Samples of an endpoint.

    Args:
        address: HOST:PORT, or a URL.
        timeout_s: longest silence.
        tls: how to verify an endpoint that answers by https.

    Raises:
        ConnectError: nobody answers, or what answers is no endpoint of metrics.
    """
    url = address if "://" in address else f"{'https' if tls else 'http'}://{address}"
    url = url if url.count("/") > 2 else f"{url}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s, context=tls) as answer:
            text = answer.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    except urllib.error.HTTPError as error:
        raise ConnectError(f"{url} answers {error.code}") from None
    except urllib.error.URLError as error:
        why = error.reason if isinstance(error.reason, OSError) else error
        raise ConnectError(f"{url} does not answer: {reason_of(why)}") from None
    except (OSError, ValueError) as error:
        raise ConnectError(f"{url} does not answer: {error}") from None


def value(samples: Samples | None, name: str, **labels: str) -> float | None:
    """One sample, None when it is not there or not a number."""
    sample = (samples or {}).get((name, tuple(sorted(labels.items()))))
    return None if sample is None or math.isnan(sample) else sample


def labelled(samples: Samples | None, name: str, **having: str) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and value of each sample of a name that has these labels, and is a number."""
    for (sample, labels), found in (samples or {}).items():
        if sample == name and having.items() <= dict(labels).items() and not math.isnan(found):
            yield dict(labels), found


def total(samples: Samples | None, name: str, **having: str) -> float:
    """The sum of a sample over all of its labels, or those that have some."""
    return sum(found for _, found in labelled(samples, name, **having))


def by_label(samples: Samples | None, name: str, label: str) -> dict[str, float]:
    """Sum of a sample for each value of a label."""
    found: dict[str, float] = defaultdict(float)
    for labels, number in labelled(samples, name):
        if label in labels:
            found[labels[label]] += number
    return dict(found)


def quantile(samples: Samples | None, histogram: str, q: float, **having: str) -> float | None:
    """Quantile `q` of a histogram, interpolated within its bucket as Prometheus' histogram_quantile does.

    Histograms whose labels have `having` are added up.
    """
    sums: dict[float, float] = defaultdict(float)
    for labels, number in labelled(samples, f"{histogram}_bucket", **having):
        sums[float(labels["le"])] += number
    buckets: Mapping[float, float] = sums
    if not buckets or not buckets.get(math.inf):
        return None
    target, below, low = q * buckets[math.inf], 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= target:
            if math.isinf(bound):
                return low
            inside = buckets[bound] - below
            return low + (bound - low) * ((target - below) / inside if inside else 1.0)
        below, low = buckets[bound], bound
    return low
