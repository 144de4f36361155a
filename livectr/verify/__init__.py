"""`livectr verify`: a server's replies, recomputed from the checkpoint of the version that they name."""
