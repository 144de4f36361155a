"""The simulated market: traffic, truth, and where its logs are written."""
