"""Serving: codes, latency, where a request's time goes, and what is refused."""

from k8s.dashboards.panels import Board, Panel, areas, heat, lines, quantile, rate
from k8s.rules.objectives import LATENCY_S

_INITIAL = rate("livectr_served_keys_total", "field", only='row="initial"')


def _stages(q: float) -> Panel:
    return lines(
        f"Stages p{q * 100:.0f}",
        "Time of each stage of a request. `wait` is the queue: add servers when it grows.",
        "s",
        (
            quantile(q, "livectr_request_stage_seconds", "role", "stage"),
            "{{role}} {{stage}}",
        ),
        width=12,
    )


BOARD = Board(
    "serving",
    "LiveCTR / Serving",
    "Rank and pre-rank servers: answers, latency, stages, queue, predictions, near-cache and Redis.",
    [
        (
            "Answers",
            [
                areas(
                    "Requests by code",
                    "Requests by role and gRPC status.",
                    "reqps",
                    (
                        rate("livectr_requests_total", "role", "code"),
                        "{{role}} {{code}}",
                    ),
                ),
                lines(
                    "Requests by pod",
                    "Answers of each pod. Uneven pods: clients keep connections; see grpc's load balancing.",
                    "reqps",
                    (rate("livectr_requests_total", "pod"), "{{pod}}"),
                ),
                lines(
                    "Candidates",
                    "Candidates scored.",
                    "cps",
                    (rate("livectr_candidates_total", "role"), "{{role}}"),
                ),
                lines(
                    "Ready",
                    "Servers whose health is SERVING.",
                    "short",
                    ("sum by (role) (livectr_server_ready{@})", "{{role}}"),
                ),
                lines(
                    "Degraded answers",
                    "Share of answers while Redis could not be asked, or was not known to be whole.",
                    "percentunit",
                    (
                        "sum by (role) (rate(livectr_degraded_requests_total{@}[$__rate_interval])) "
                        "/ sum by (role) (rate(livectr_requests_total{@}[$__rate_interval]))",
                        "{{role}}",
                    ),
                ),
                lines(
                    "Computed again",
                    "Requests that moved on to a newer version, since theirs was overwritten.",
                    "reqps",
                    (rate("livectr_retried_requests_total", "role"), "{{role}}"),
                ),
                lines(
                    "Explained",
                    "Candidates whose scores are explained. Each costs as much as some scores.",
                    "cps",
                    (rate("livectr_explained_candidates_total", "pod"), "{{pod}}"),
                ),
                lines(
                    "Champion",
                    "Servers by the model that ranks. Two models at once: servers swap one after another.",
                    "short",
                    (
                        'sum by (model) (livectr_served_champion{@, side!="canary"})',
                        "{{model}}",
                    ),
                ),
                lines(
                    "Checks that failed",
                    "Checks for a newer version that failed, by what the error means.",
                    "ops",
                    (rate("livectr_serving_checks_failed_total", "role", "outcome"), "{{role}} {{outcome}}"),
                ),
            ],
        ),
        (
            "Sides",
            [
                areas(
                    "Requests by side",
                    "Answers and errors of the stable side and of a canary. Compare the shares of errors.",
                    "reqps",
                    (rate("livectr_requests_total", "side", "code"), "{{side}} {{code}}"),
                ),
                lines(
                    "p99 by side",
                    "Time in the server of the slowest percent, by role and side.",
                    "s",
                    (
                        quantile(0.99, "livectr_request_seconds", "role", "side", only='code="OK"'),
                        "{{role}} {{side}}",
                    ),
                ),
                lines(
                    "Given back",
                    "Requests of a canary's share that the stable side answered, by reason.",
                    "reqps",
                    (rate("livectr_canary_fallbacks_total", "reason"), "{{reason}}"),
                ),
            ],
        ),
        (
            "Latency",
            [
                heat(
                    "Rank",
                    "Time in the server of rank requests that were answered.",
                    "livectr_request_seconds",
                    'role="rank", code="OK"',
                ),
                heat(
                    "Pre-rank",
                    "Time in the server of pre-rank requests that were answered.",
                    "livectr_request_seconds",
                    'role="prerank", code="OK"',
                ),
                _stages(0.5),
                _stages(0.99),
                lines(
                    "Pauses",
                    "Share of the moments from which a request waits over 50 ms until its server runs: a CPU "
                    "limit, swapping, a busy machine. Its handler does not measure this wait.",
                    "percentunit",
                    (
                        f'1 - sum by (pod) (rate(livectr_pause_seconds_bucket{{@, le="{LATENCY_S}"}}'
                        "[$__rate_interval])) / "
                        "sum by (pod) (rate(livectr_pause_seconds_count{@}[$__rate_interval]))",
                        "{{pod}}",
                    ),
                    width=12,
                ),
                lines(
                    "Pauses p99",
                    "Wait of one request of a hundred before its server runs.",
                    "s",
                    (quantile(0.99, "livectr_pause_seconds", "pod"), "{{pod}}"),
                    width=12,
                    most=LATENCY_S,
                ),
                lines(
                    "Requests p99 by code",
                    "Time in the server, answers and failures apart. Failures at the deadline cost the most.",
                    "s",
                    (quantile(0.99, "livectr_request_seconds", "role", "code"), "{{role}} {{code}}"),
                    width=24,
                    most=LATENCY_S,
                ),
            ],
        ),
        (
            "Inputs of requests",
            [
                lines(
                    "Age of look-up rows",
                    "Time since a request's oldest look-up row was read from Redis: p50 and p99.",
                    "s",
                    (quantile(0.5, "livectr_live_input_age_seconds", "role"), "{{role}} p50"),
                    (quantile(0.99, "livectr_live_input_age_seconds", "role"), "{{role}} p99"),
                    width=12,
                ),
                lines(
                    "Inputs newer than the version",
                    "From the version's creation to the read of a request's look-up rows or histories.",
                    "s",
                    (quantile(0.5, "livectr_live_input_skew_seconds", "role"), "{{role}} p50"),
                    (quantile(0.95, "livectr_live_input_skew_seconds", "role"), "{{role}} p95"),
                    width=12,
                ),
            ],
        ),
        (
            "Served log",
            [
                lines(
                    "Records",
                    "Sampled requests whose record is in the served log. None without `served_log`.",
                    "cps",
                    (rate("livectr_served_log_records_total", "pod"), "{{pod}}"),
                ),
                lines(
                    "Records that wait",
                    "Sampled requests whose record is not written yet. It grows while the sink is away.",
                    "short",
                    ("sum by (pod) (livectr_served_log_waiting_records{@})", "{{pod}}"),
                ),
                lines(
                    "Dropped records",
                    "Sampled requests without a record, by reason. `no_request_id`: clients send no id.",
                    "cps",
                    (rate("livectr_served_log_dropped_total", "reason"), "{{reason}}"),
                ),
            ],
        ),
        (
            "Queue",
            [
                lines(
                    "Active",
                    "Requests that are computed, by pod. At `max_active` others wait.",
                    "short",
                    ("sum by (pod, role) (livectr_active_requests{@})", "{{pod}} {{role}}"),
                ),
                lines(
                    "Waiting",
                    "Requests that wait for a place. At `max_waiting` others are refused.",
                    "short",
                    ("sum by (pod, role) (livectr_waiting_requests{@})", "{{pod}} {{role}}"),
                ),
                lines(
                    "Refused",
                    "Requests that were shed because the server was full.",
                    "reqps",
                    (
                        rate("livectr_shed_requests_total", "pod", "role"),
                        "{{pod}} {{role}}",
                    ),
                ),
            ],
        ),
        (
            "Predictions",
            [
                lines(
                    "Mean pCTR in replies",
                    "Mean click probability of candidates, and the clicked share of impressions. They "
                    "differ, as the best are shown, but move together. LiveCTRPredictionsMoved watches them.",
                    "percentunit",
                    (
                        f"{rate('livectr_served_pctr_sum', 'role')} / "
                        f"{rate('livectr_served_pctr_count', 'role')}",
                        "{{role}}",
                    ),
                    ("max(livectr_observed_ctr{@})", "clicked"),
                ),
                lines(
                    "pCTR in replies",
                    "Distribution of the click probabilities: median and tails.",
                    "percentunit",
                    *(
                        (quantile(q, "livectr_served_pctr", "role"), f"{{{{role}}}} p{q * 100:.0f}")
                        for q in (0.05, 0.5, 0.95, 0.99)
                    ),
                ),
                lines(
                    "Initial values",
                    "Share of a field's keys without a published row: they are new, or are not learned. Near "
                    "1 for a field: the ids of requests are not those of the log.",
                    "percentunit",
                    (f"{_INITIAL} / {rate('livectr_served_keys_total', 'field')}", "{{field}}"),
                ),
            ],
        ),
        (
            "Near-cache and Redis",
            [
                lines(
                    "Near-cache hits",
                    "Share of the unique keys of a look-up whose row a server need not read from Redis.",
                    "percentunit",
                    (
                        "sum by (pod) (rate(livectr_near_cache_hits_total{@}[$__rate_interval])) / "
                        "(sum by (pod) (rate(livectr_near_cache_hits_total{@}[$__rate_interval])) + "
                        "sum by (pod) (rate(livectr_near_cache_misses_total{@}[$__rate_interval])))",
                        "{{pod}}",
                    ),
                    width=6,
                ),
                lines(
                    "Near-cache rows",
                    "Rows held in each server.",
                    "short",
                    ("sum by (pod) (livectr_near_cache_rows{@})", "{{pod}}"),
                    width=6,
                ),
                lines(
                    "Rows read",
                    "Rows of embeddings that requests read from Redis.",
                    "cps",
                    (rate("livectr_near_cache_read_keys_total", "pod"), "{{pod}}"),
                    width=6,
                ),
                lines(
                    "Round trip to Redis p99",
                    "Slowest command or pipeline of a hundred, by client. Requests give up after 250 ms.",
                    "s",
                    (
                        quantile(0.99, "livectr_redis_seconds", "client"),
                        "{{client}}",
                    ),
                    width=6,
                ),
                lines(
                    "Redis errors",
                    "Failed commands by client and meaning: it passes, Redis refuses, or a wrong use.",
                    "ops",
                    (
                        rate("livectr_redis_errors_total", "client", "outcome"),
                        "{{client}} {{outcome}}",
                    ),
                    width=6,
                ),
            ],
        ),
    ],
)
