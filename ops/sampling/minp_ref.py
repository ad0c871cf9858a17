"""Torch reference of sampling.minp: any device, float64 inside."""

from ..common import sampling

reference = sampling.sample
