"""The name by which the C binding imports `layerzero.contracts.axes`."""

from layerzero.contracts.axes import call_prepared as call_prepared
