"""Groups of settings, by what a user looks for in `--help`."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Basics": (
        *(
            "config",
            "pipeline",
            "source",
            "redis",
            "publish",
            "checkpoint",
            "listen",
            "namespace",
            "until_end",
        ),
        *(
            "until_idle_s",
            "until_stopped",
            "workers",
            "content",
            "report",
            "predictions",
            "run_log",
            "max_steps",
            "seed",
        ),
    ),
    "Learning": (
        *("batch_size", "batch_ramp", "batch_min", "online_batch", "warm_start", "warm_parts", "precision"),
        *("products",),
        *("metrics_window_s", "materialized", "common_features"),
    ),
    "Freshness and versions": (
        *(
            "batch_wait_s",
            "batch_interval_ms",
            "idle_partition_s",
            "order_of",
            "publish_interval_s",
            "publish_rate",
            "min_examples",
            "keep_versions",
        ),
        *("content_refresh_s", "content_tolerance"),
        *("keep_every_s", "publish_gate_auc", "publish_gate_calibration", "publish_gate_clicks"),
        *(
            "publish_gate_window",
            "checkpoint_copy",
            "checkpoint_interval_s",
            "max_checkpoint_age_s",
            "accept_stale",
            "take_over",
        ),
        *("lookup_ttl_s", "lost_grace_s", "max_stale_s", "served_log", "served_share", "canary"),
    ),
    "Ranks": (
        *("ranks", "nodes", "node", "rendezvous", "restarts", "generation", "threads", "placement"),
        *("aggregate", "field_exchange", "wire"),
    ),
    "Memory": ("rank_memory", "dram_bytes", "spill", "near_cache_rows", "item_partials_mb"),
    "GPU": ("device", "gpu_budget", "gpu_rows"),
    "Bad records": (
        *(
            "dead_letters",
            "dead_letter_spool_bytes",
            "max_record_bytes",
            "max_record_depth",
            "max_message_rows",
        ),
        *("max_unpacked_bytes", "min_usable"),
    ),
    "Load and large requests": (
        *(
            "max_active",
            "max_waiting",
            "max_active_bytes",
            "max_wait_s",
            "max_candidates",
            "max_message_bytes",
        ),
        *("max_list", "max_string_bytes", "max_top_k", "max_values"),
    ),
    "Starting, stopping, watching": (
        "log_level",
        *("start_wait_s", "drain_s", "grace_s", "max_connection_age_s", "health_listen", "log_format"),
        *("metrics_port", "metrics_listen", "group"),
    ),
    "Security": (
        *("tls_cert", "tls_key", "tls_client_ca", "token_file", "reflection", "redis_password_file"),
        *("metrics_tls_cert", "metrics_tls_key", "metrics_tls_client_ca"),
    ),
}
"""Title → names of settings, in the order of `--help`."""
