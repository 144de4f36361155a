"""Views of a pipeline, a checkpoint and a published version, for `livectr inspect`."""
