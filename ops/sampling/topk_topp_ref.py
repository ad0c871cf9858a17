"""Torch reference of sampling.topk_topp: any device, float64 inside."""

from ..common import sampling

reference = sampling.sample
