"""Host driver of generated feature extraction."""
