"""Kernels that are compiled while the process runs: a queue off the request path, artifacts on disk, warm-up, readiness.

`work` is the queue and its thread, `flight` what processes agree on, `store` the artifacts, `library` the kernels of other
libraries, `manifest` the calls that a warm-up prepares.
"""
