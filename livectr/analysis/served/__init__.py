"""The served log, joined with clicks and compared with the trainer's features."""
