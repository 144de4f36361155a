"""Servers and processes on this machine: Kafka, Valkey, ports, children."""
