"""Measurements for `layerzero bench`. Nothing outside the command line imports them."""
