"""The name by which the C binding imports `layerzero.inspection`."""

from layerzero.inspection import report_of as report_of
