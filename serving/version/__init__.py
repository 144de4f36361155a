"""The version that answers: followed in Redis, held in memory, checked."""
