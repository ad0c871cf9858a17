"""Recognises what the layers of a model compute: `trace` records a graph, `patterns` and `match` read it, `prove` compares numbers."""
