"""The request benchmark's pipeline, without images."""

from bench.images.view import view

pipeline = view(images=False)
