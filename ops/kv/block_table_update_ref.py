"""Torch reference of kv.block_table_update: any device; writes into the table."""

import torch


def reference(block_tables, updates):
    limits = torch.iinfo(block_tables.dtype)
    for row, position, block in updates.tolist():
        inside = 0 <= row < block_tables.shape[0] and 0 <= position < block_tables.shape[1]
        if not inside or not limits.min <= block <= limits.max:
            raise ValueError(
                f"updates: wanted places of a {tuple(block_tables.shape)} table, got {(row, position, block)}"
            )
    for row, position, block in updates.tolist():
        block_tables[row, position] = block
