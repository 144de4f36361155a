"""Commands of a running system: trainer, servers, their client, and local stand-ins for Kafka and Redis."""
