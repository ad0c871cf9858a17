"""Kernels of Python libraries in worker processes or containers (the policy's backend_isolation)."""
