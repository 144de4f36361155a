"""FeatureBox's benchmark: 200 features of a display-ads view of 5 tables, beside Polars and PySpark.

schema, view     the log and its tables, and the script that writes them
features         the 200 features, once, for every contestant
pipeline, ours   ours: the feature language
staged, polars_peer, spark_peer, extracted   the peers', in their own environment (peers.txt)
equal            are the features the same?
compare          the rows of `livectr bench featurebox`
"""


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench featurebox`."""
    from bench.featurebox.compare import rows

    return rows(quick)
