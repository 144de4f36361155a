"""A table row: its values, optimisers and layout, in C++."""
