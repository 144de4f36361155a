"""Images: content (images, texts) and item vectors, from the picture to the vector that answers."""

from k8s.dashboards.panels import Board, areas, lines, quantile, rate

BOARD = Board(
    "images",
    "LiveCTR / Images",
    "Images, texts and item vectors: encoded, embedded, computed for a version, and held by servers.",
    [
        (
            "Encoding beside training",
            [
                areas(
                    "Encoded",
                    "Pictures of the stream that the ranks encode in a second.",
                    "cps",
                    (rate("livectr_content_encoded_total", "content"), "{{content}}"),
                ),
                lines(
                    "Pictures behind",
                    "Records of the pictures' topic that are not read. It grows: encoding does not keep up.",
                    "short",
                    ("sum by (content) (livectr_content_queue_records{@})", "{{content}}"),
                ),
                lines(
                    "Bad pictures",
                    "Pictures that do not decode. They are dead letters; their ids have no features.",
                    "cps",
                    (rate("livectr_content_bad_total", "content"), "{{content}}"),
                ),
                lines(
                    "Encode",
                    "Seconds to decode and encode some pictures together, beside training.",
                    "s",
                    (quantile(0.5, "livectr_content_encode_seconds", "content"), "{{content}} p50"),
                    (quantile(0.99, "livectr_content_encode_seconds", "content"), "{{content}} p99"),
                    width=12,
                ),
                lines(
                    "Read features",
                    "Seconds to read the raw features of a batch.",
                    "s",
                    (quantile(0.5, "livectr_content_read_seconds", "content"), "{{content}} p50"),
                    (quantile(0.99, "livectr_content_read_seconds", "content"), "{{content}} p99"),
                    width=12,
                ),
            ],
        ),
        (
            "Steps",
            [
                areas(
                    "Embedded in steps",
                    "Unique ids of batches whose content the sub-model embeds.",
                    "cps",
                    (rate("livectr_content_embedded_total", "content"), "{{content}}"),
                    width=12,
                ),
                lines(
                    "Ids without features",
                    "Share of the unique ids of batches that get the learned vector of absent content. Many: "
                    "pictures are missing, or their ids are not those of the log.",
                    "percentunit",
                    (
                        f"{rate('livectr_content_absent_total', 'content')} / "
                        f"({rate('livectr_content_absent_total', 'content')} + "
                        f"{rate('livectr_content_embedded_total', 'content')})",
                        "{{content}}",
                    ),
                    width=12,
                ),
            ],
        ),
        (
            "Vectors of versions",
            [
                areas(
                    "Computed vectors",
                    "Ids whose vector is computed for a version. With `content_refresh_s` a part of all.",
                    "cps",
                    (rate("livectr_precomputed_content_total", "content"), "{{content}}"),
                    (rate("livectr_computed_items_total", "namespace"), "items {{namespace}}"),
                ),
                lines(
                    "Time to compute",
                    "Seconds that the vectors of a version take on a rank. A version is not served before.",
                    "s",
                    (quantile(0.5, "livectr_precompute_seconds", "content"), "{{content}} p50"),
                    (quantile(0.99, "livectr_precompute_seconds", "content"), "{{content}} p99"),
                ),
                lines(
                    "Age of the oldest vector",
                    "Event time between the oldest published vector and the newest version. 0 without "
                    "`content_refresh_s`.",
                    "s",
                    ("max by (content) (livectr_content_oldest_seconds{@})", "{{content}}"),
                    ("max by (namespace) (livectr_items_oldest_seconds{@})", "items {{namespace}}"),
                ),
                lines(
                    "Drift of vectors",
                    "With `content_tolerance`: largest movement of a sample's vectors since they were "
                    "computed, relative to their norm.",
                    "percentunit",
                    ("max by (content) (livectr_content_drift_ratio{@})", "{{content}}"),
                    ("max by (namespace) (livectr_items_drift_ratio{@})", "items {{namespace}}"),
                ),
                lines(
                    "Vectors in servers",
                    "Published vectors that each server holds. A server with fewer has an older version.",
                    "short",
                    ("max by (pod, content) (livectr_content_vectors{@})", "{{pod}} {{content}}"),
                    width=16,
                ),
            ],
        ),
        (
            "Requests",
            [
                areas(
                    "Ids without a published vector",
                    "Ids of requests that no version has a vector of: held from before, embedded from raw "
                    "features, or absent.",
                    "cps",
                    (rate("livectr_cold_content_total", "content", "outcome"), "{{content}} {{outcome}}"),
                ),
                lines(
                    "Their vectors in servers",
                    "Vectors of these ids that are held for the version that is served.",
                    "short",
                    ("sum by (pod, content) (livectr_cold_content_vectors{@})", "{{pod}} {{content}}"),
                ),
                areas(
                    "Partial results of items",
                    "Partial results of candidates' own features: kept, computed for a request, or ahead of "
                    "requests when a version comes.",
                    "cps",
                    (rate("livectr_item_partials_total", "outcome"), "{{outcome}}"),
                ),
            ],
        ),
    ],
)
