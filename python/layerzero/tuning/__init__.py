"""Tuning: kernels of calls measured side by side, in processes of their own, into the performance database."""
