"""The name by which the C binding imports `layerzero.contracts.arguments`."""

from layerzero.contracts.arguments import refuse_keyword as refuse_keyword
from layerzero.contracts.arguments import refuse_positional as refuse_positional
from layerzero.contracts.arguments import refuse_twice as refuse_twice
