"""Torch reference of sampling.topp: any device, float64 inside."""

from ..common import sampling

reference = sampling.sample
