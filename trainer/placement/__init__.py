"""Which rank holds which field, from measured keys and bytes."""
