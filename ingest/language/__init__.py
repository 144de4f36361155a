"""What a user writes: streams, tables, expressions, types and policies."""
