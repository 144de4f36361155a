"""Reading the Prometheus endpoints of our own processes."""

import math
import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(port: int, timeout_s: float = 1.0) -> Samples | None:
    """{(sample name, sorted labels): value} of the endpoint at 127.0.0.1:`port`; None when nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=timeout_s) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError):
        return None
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples | None, name: str, **labels: str) -> float | None:
    """One sample, None when it is not there or not a number."""
    sample = (samples or {}).get((name, tuple(sorted(labels.items()))))
    return None if sample is None or math.isnan(sample) else sample


def total(samples: Samples | None, name: str) -> float:
    """The sum of a sample over all of its labels."""
    return sum(v for (sample, _), v in (samples or {}).items() if sample == name)


def quantile(samples: Samples | None, histogram: str, q: float) -> float | None:
    """Quantile `q` of a histogram, interpolated within its bucket as Prometheus' histogram_quantile does."""
    buckets: Mapping[float, float] = {
        float(dict(labels)["le"]): v
        for (name, labels), v in (samples or {}).items()
        if name == f"{histogram}_bucket"
    }
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
