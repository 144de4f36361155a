"""Placement of fields on ranks, by measured keys and bytes."""
