"""JSON front: the calls of a server over HTTP, and a page for people."""
