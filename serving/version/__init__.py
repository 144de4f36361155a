"""Version that answers requests: followed in Redis, loaded into memory, checked for losses."""
