"""Who may ask, and how many at a time: looked at before a thread takes a call."""
