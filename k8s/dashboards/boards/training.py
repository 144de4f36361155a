"""Training: where a step's time goes, and whether its results are safe."""

from k8s.dashboards.panels import Board, areas, lines, rate
from k8s.rules.alerts import bound_s


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{@}}[$__rate_interval])))",
            f"p{q * 100:.0f}",
        )
        for q in (0.5, 0.99)
    )


BOARD = Board(
    "training",
    "LiveCTR / Training",
    "Steps of all ranks, their collectives, and checkpoints.",
    [
        (
            "Steps",
            [
                lines(
                    "Examples learned",
                    "Examples that all ranks learn in a second, mean of 10 s, as in `livectr status`.",
                    "cps",
                    (
                        "sum by (namespace) (livectr_examples_per_second{@})",
                        "{{namespace}}",
                    ),
                    (
                        rate("livectr_backfill_examples_total", "namespace"),
                        "backfill {{namespace}}",
                    ),
                ),
                lines(
                    "Step",
                    "Seconds of a step, without the extraction of its features.",
                    "s",
                    *_quantiles("livectr_step_seconds"),
                ),
                lines(
                    "Extraction",
                    "Seconds to extract a batch's features, beside the step of the batch before.",
                    "s",
                    *_quantiles("livectr_extract_seconds"),
                ),
                lines(
                    "Wait for features",
                    "Seconds that a step waits for its features: near 0 while extraction keeps up.",
                    "s",
                    *_quantiles("livectr_extract_wait_seconds"),
                ),
                lines(
                    "Time of a rank",
                    "Share of the time in steps, and in waiting for features. The rest waits for events.",
                    "percentunit",
                    (
                        rate("livectr_step_seconds_sum", "pod", "instance"),
                        "step {{pod}} {{instance}}",
                    ),
                    (
                        rate("livectr_extract_wait_seconds_sum", "pod", "instance"),
                        "wait {{pod}} {{instance}}",
                    ),
                ),
                lines(
                    "Skipped batches",
                    "Batches whose gradients were not finite: scored, not learned. Should be 0.",
                    "ops",
                    (
                        rate("livectr_skipped_batches_total", "namespace"),
                        "{{namespace}}",
                    ),
                ),
                lines(
                    "Checks of the copies",
                    "Comparisons of the network's copies on all ranks. A difference ends the run.",
                    "ops",
                    (rate("livectr_replica_checks_total", "namespace"), "{{namespace}}"),
                ),
            ],
        ),
        (
            "Collectives",
            [
                areas(
                    "Bytes",
                    "Bytes that the ranks send each other, by kind. A single rank sends none.",
                    "Bps",
                    (
                        rate("livectr_collective_bytes_total", "collective"),
                        "{{collective}}",
                    ),
                    width=12,
                ),
                areas(
                    "Time",
                    "Share of the ranks' time in collectives, waiting for other ranks included.",
                    "percentunit",
                    (
                        "avg by (collective) (rate(livectr_collective_seconds_total{@}[$__rate_interval]))",
                        "{{collective}}",
                    ),
                    width=12,
                ),
            ],
        ),
        (
            "Checkpoints and versions",
            [
                lines(
                    "Age of the checkpoint",
                    "What a crash would repeat. It grows while no checkpoint is written.",
                    "s",
                    (
                        "time() - max by (namespace) (livectr_checkpoint_timestamp_seconds{@} > 0)",
                        "{{namespace}}",
                    ),
                    most=bound_s("CheckpointOld"),
                ),
                lines(
                    "Checkpoint",
                    "Seconds for which a checkpoint holds training up.",
                    "s",
                    *_quantiles("livectr_checkpoint_seconds"),
                ),
                lines(
                    "Checkpoint until it exists",
                    "Seconds from a checkpoint's step boundary until it exists, while training continues.",
                    "s",
                    *_quantiles("livectr_checkpoint_write_seconds"),
                ),
                lines(
                    "Rows published",
                    "Table rows written to Redis.",
                    "cps",
                    (
                        rate("livectr_published_rows_total", "namespace"),
                        "{{namespace}}",
                    ),
                ),
                lines(
                    "Free disk",
                    "Free share of the disk with checkpoints and spilled rows. An alert fires below 15 %.",
                    "percentunit",
                    (
                        "min by (pod, folder) (livectr_disk_free_bytes{@} / livectr_disk_bytes{@})",
                        "{{pod}} {{folder}}",
                    ),
                    least=0.15,
                ),
                lines(
                    "Published version",
                    "Number of the newest version. It rises while events come.",
                    "none",
                    ("max by (namespace) (livectr_published_version{@})", "{{namespace}}"),
                ),
                lines(
                    "Age of the published version",
                    "Time since the newest version was published. It grows while no events come.",
                    "s",
                    (
                        "time() - max by (namespace) (livectr_published_timestamp_seconds{@} > 0)",
                        "{{namespace}}",
                    ),
                    most=bound_s("NoPublish"),
                ),
                lines(
                    "Versions",
                    "Versions in a minute, by their rows. `all` again and again: Redis loses versions.",
                    "short",
                    (
                        f"60 * {rate('livectr_published_versions_total', 'rows')}",
                        "{{rows}}",
                    ),
                ),
                lines(
                    "Copy for a version",
                    "Seconds for which a version holds training up, to copy what changed.",
                    "s",
                    *_quantiles("livectr_publish_copy_seconds"),
                ),
                lines(
                    "Failures of stores",
                    "Requests of checkpoints that S3 did not answer, and checks of Redis without an answer. "
                    "Both are repeated.",
                    "ops",
                    (rate("livectr_checkpoint_store_failures_total", "pod"), "S3 {{pod}}"),
                    (rate("livectr_published_checks_failed_total", "pod"), "Redis {{pod}}"),
                ),
                lines(
                    "Starts",
                    "Starts of the trainer's processes in an hour, by pod.",
                    "short",
                    (
                        'sum by (pod) (changes(process_start_time_seconds{@, job=~"trainer.*"}[1h]))',
                        "{{pod}}",
                    ),
                ),
            ],
        ),
    ],
)
