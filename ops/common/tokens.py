"""What the torch references of the operations on texts share."""

import torch


def copy_pieces(values, starts, tokenizer, capacity, dtype):
    """Returns the pieces of `values` that `starts` names, one after another, padded with zeros, and their ends."""
    if tokenizer != 0:
        raise NotImplementedError("the reference has tokenizer 0 alone")
    bounds = starts.long().clamp(0, values.shape[0]).cummax(0).values
    ends = bounds[1:] - bounds[:1]
    place = torch.arange(capacity, device=values.device)
    inside = place < (bounds[-1:] - bounds[:1])
    source = (place + bounds[:1]).clamp(max=max(values.shape[0] - 1, 0))
    taken = values[source].to(torch.int64) if values.shape[0] else torch.zeros_like(place)
    return torch.where(inside, taken & 255, 0).to(dtype), ends
