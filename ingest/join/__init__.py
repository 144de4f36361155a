"""Event-time merge, label join, look-ups and behavior histories: log records become labelled examples."""
