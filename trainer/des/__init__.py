"""The synchronous step (DES Algorithm 1): exchange, partial results, gradients."""
