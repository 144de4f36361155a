"""Logs → feature batches."""
