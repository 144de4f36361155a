"""Commands for decisions: variants of a model, the size of a deployment, LiveCTR's own speed."""
