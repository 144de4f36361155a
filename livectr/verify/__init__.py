"""`livectr query verify`: a server's replies, recomputed from the checkpoint of the version they name."""
