"""Content of a run: the Advanced Model Server and the features that it reads."""
