"""Torch reference of sampling.topk: any device, float64 inside."""

from ..common import sampling

reference = sampling.sample
