"""Calls on torch tensors outside the C binding: attaching, the slow path, torch.ops.layerzero, references."""
