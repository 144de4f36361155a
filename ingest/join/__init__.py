"""From logs to examples: event-time merge, label join, look-ups, behavior histories."""
