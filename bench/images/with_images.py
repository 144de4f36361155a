"""The request benchmark's pipeline, with images."""

from bench.images.view import view

pipeline = view(images=True)
