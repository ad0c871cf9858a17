"""Compiled references: torch expressions of operations that Inductor has compiled for the shapes of recorded calls.

`rows` makes the kernels' descriptors, `recording` notes calls, `worker` compiles them in a thread of its own.
"""
