"""Platform: processes, machines, Redis and the broker under LiveCTR."""

from k8s.dashboards.panels import Board, lines, rate

_POD = 'namespace=~"$namespace", pod=~"$pod"'
_CONTAINER = f'{{{_POD}, container!="", container!="POD"}}'


def _kubelet(counter: str) -> str:
    """PromQL of the rate of a counter of the kubelet, whose job is not ours."""
    return f"sum by (pod) (rate({counter}{_CONTAINER}[$__rate_interval]))"


BOARD = Board(
    "platform",
    "LiveCTR / Platform",
    "CPU, memory, disk and GPU of the processes, and the state of Redis and the broker.",
    [
        (
            "Processes",
            [
                lines(
                    "CPU",
                    "Cores that each process uses, by its own count.",
                    "none",
                    (
                        rate("process_cpu_seconds_total", "pod", "instance"),
                        "{{pod}} {{instance}}",
                    ),
                ),
                lines(
                    "Memory",
                    "Resident memory of each process.",
                    "bytes",
                    ("sum by (pod, instance) (process_resident_memory_bytes{@})", "{{pod}} {{instance}}"),
                ),
                lines(
                    "Open files",
                    "Open file descriptors as a share of the most that are allowed.",
                    "percentunit",
                    (
                        "max by (pod, instance) (process_open_fds{@} / process_max_fds{@})",
                        "{{pod}} {{instance}}",
                    ),
                ),
                lines(
                    "Starts",
                    "Starts of processes in an hour. A process that dies again and again shows here.",
                    "short",
                    ("sum by (job) (changes(process_start_time_seconds{@}[1h]))", "{{job}}"),
                    width=12,
                ),
                lines(
                    "Targets",
                    "Endpoints of LiveCTR that Prometheus reads, as a share of those that should be there.",
                    "percentunit",
                    ("avg by (job) (up{@})", "{{job}}"),
                    width=12,
                ),
            ],
        ),
        (
            "Containers",
            [
                lines(
                    "CPU of containers",
                    "Cores of each container, from the kubelet.",
                    "none",
                    (
                        _kubelet("container_cpu_usage_seconds_total"),
                        "{{pod}}",
                    ),
                ),
                lines(
                    "CPU held back",
                    "Share of periods in which a container was held to its CPU limit.",
                    "percentunit",
                    (
                        f"{_kubelet('container_cpu_cfs_throttled_periods_total')} / "
                        f"{_kubelet('container_cpu_cfs_periods_total')}",
                        "{{pod}}",
                    ),
                ),
                lines(
                    "Memory of containers",
                    "Working set of each container: what the kernel's out-of-memory killer looks at.",
                    "bytes",
                    (f"sum by (pod) (container_memory_working_set_bytes{_CONTAINER})", "{{pod}}"),
                ),
            ],
        ),
        (
            "GPU",
            [
                lines(
                    "GPU",
                    "Busy share of each GPU, from NVIDIA's DCGM exporter.",
                    "percentunit",
                    (
                        f"max by (pod, gpu) (DCGM_FI_DEV_GPU_UTIL{{{_POD}}}) / 100",
                        "{{pod}} {{gpu}}",
                    ),
                    width=12,
                ),
                lines(
                    "GPU memory",
                    "Memory in use of each GPU.",
                    "bytes",
                    (
                        f"max by (pod, gpu) (DCGM_FI_DEV_FB_USED{{{_POD}}}) * 1048576",
                        "{{pod}} {{gpu}}",
                    ),
                    width=12,
                ),
            ],
        ),
        (
            "Redis and broker",
            [
                lines(
                    "Memory of Redis",
                    "Memory that Redis uses, and its bound (0: none), as the servers read them.",
                    "bytes",
                    ("max by (namespace) (livectr_redis_memory_bytes{@})", "used"),
                    ("max by (namespace) (livectr_redis_max_memory_bytes{@})", "bound"),
                ),
                lines(
                    "Evicted keys",
                    "Keys that Redis has removed to save memory. Must stay 0: rows of the model are lost.",
                    "short",
                    ("max by (namespace) (livectr_redis_evicted_keys{@})", "{{namespace}}"),
                ),
                lines(
                    "Risky policy",
                    "1 while Redis's `maxmemory-policy` may evict rows of the model. Set noeviction.",
                    "bool",
                    ("max by (namespace) (livectr_redis_risky_policy{@})", "{{namespace}}"),
                ),
                lines(
                    "Commands",
                    "Commands and pipelines that LiveCTR sends to Redis, by client.",
                    "ops",
                    (
                        rate("livectr_redis_seconds_count", "client"),
                        "{{client}}",
                    ),
                ),
                lines(
                    "Read from the broker",
                    "Bytes that the trainer reads.",
                    "Bps",
                    (
                        rate("livectr_read_bytes_total", "pod", "instance"),
                        "{{pod}} {{instance}}",
                    ),
                    width=12,
                ),
                lines(
                    "End of the log",
                    "Records behind the end of the log: a broker that stands still shows as a constant.",
                    "short",
                    (
                        "sum by (topic, partition) (livectr_consumer_lag_records{@})",
                        "{{topic}} {{partition}}",
                    ),
                    width=12,
                ),
                lines(
                    "Offsets that a broker did not take",
                    "Failed offset commits for `group`: training continues, Kafka's tools show an old lag.",
                    "cps",
                    (rate("livectr_group_commit_failures_total", "pod"), "{{pod}}"),
                    width=12,
                ),
            ],
        ),
    ],
)
