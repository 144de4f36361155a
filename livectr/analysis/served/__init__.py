"""What was served, joined with clicks and compared with the trainer's features."""
