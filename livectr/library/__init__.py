"""LiveCTR as a library: features, training, embeddings and scores of rows in memory, without servers."""
