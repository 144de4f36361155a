"""Log of what was served."""
