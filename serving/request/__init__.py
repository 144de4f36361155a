"""A request: limits, admission, columns, look-up rows, features."""
