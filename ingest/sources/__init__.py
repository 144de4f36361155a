"""Where logs come from: a Kafka cluster or a folder of files, both read as record batches with positions."""
