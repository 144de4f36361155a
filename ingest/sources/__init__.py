"""Sources of logs: a Kafka cluster or a folder of files, read as record batches with positions."""
