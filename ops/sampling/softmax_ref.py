"""Torch reference of sampling.softmax: any device, differentiable."""

import torch


def reference(logits, temperature=1.0, *, row_temperature=None):
    x = logits if logits.dtype == torch.float64 else logits.float()
    if row_temperature is not None:
        if not bool((row_temperature.isfinite() & (row_temperature > 0)).all()):
            raise ValueError(f"row_temperature: wanted numbers above 0, got {row_temperature.tolist()}")
        temperature = row_temperature[..., None].double()
    elif temperature == 1.0:
        return torch.softmax(x, dim=-1).float()
    x = x.double() / 2  # no difference of finite halves is infinite
    x = (x - x.detach().amax(-1, keepdim=True)) / temperature * 2 if x.numel() else x
    return torch.softmax(x, dim=-1).float()
