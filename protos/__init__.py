"""Messages and services of gRPC, and the code that is generated from them."""
