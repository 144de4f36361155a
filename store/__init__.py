"""Published models in Redis: their layout, and the client of a server or cluster."""
