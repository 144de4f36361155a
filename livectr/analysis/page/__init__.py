"""Page of a run: one HTML file out of its run log."""
