"""Pipeline language: streams, tables, expressions, types and policies that a user writes."""
