"""Models that learn example by example."""
