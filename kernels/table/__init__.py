"""The dynamic hash table on the host."""
