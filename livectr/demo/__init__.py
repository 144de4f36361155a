"""`livectr demo`: the whole path on one machine."""
