"""Dynamic hash table in a GPU's memory, and the cache of hot rows."""
