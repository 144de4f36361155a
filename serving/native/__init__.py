"""Native gRPC front of a server: what needs no Python is answered before Python."""
