"""Features of images and texts by id: the store, and the topic that fills it."""
