"""The kernels of a model's calls, and why each other kernel lost, for `layerzero demo`."""

import torch

import layerzero as lz


def calls(model, rows=220):
    """Yields (phase, operation, tensors, parameters) of a layer's prefill and decode calls, and of the output layer."""
    config, dtype = model.config, model.dtype
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    kv_heads = config.num_key_value_heads
    width = getattr(config, "head_dim", None) or hidden // heads

    def tensor(*shape):
        return torch.zeros(shape, dtype=dtype)

    for phase, length in (("prefill", rows), ("decode", 1)):
        key = tensor(1, rows, kv_heads, width)
        angles = tensor(1, length, width)
        yield phase, "embedding", (torch.zeros(1, length, dtype=torch.int64), tensor(config.vocab_size, hidden)), {}
        yield phase, "fused_add_rms_norm", (tensor(1, length, hidden), tensor(1, length, hidden), tensor(hidden)), {}
        yield phase, "linear", (tensor(1, length, hidden), tensor(inner, hidden)), {}
        yield phase, "rope", (tensor(1, length, heads, width), angles, angles), {"layout": "BSHD"}
        attention = (tensor(1, length, heads, width), key, key)
        yield phase, "attention", attention, {"causal": True, "layout": "BSHD"}
        yield phase, "swiglu", (tensor(1, length, inner), tensor(1, length, inner)), {}
    yield "decode", "sample_topk", (tensor(1, config.vocab_size), 1), {}


def main_reason(candidate, chosen):
    """Returns in a few words why a candidate lost."""
    if candidate.kernel_id.startswith("ref."):
        return "reference, for checking only"
    if not candidate.admissible:
        if candidate.only_lacks_compilation:
            return "not compiled"
        reason = candidate.reasons[0]
        return f"{reason.field}: wants {reason.wanted}, got {reason.got}" if reason.wanted else str(reason)
    if candidate.score < chosen.score:
        return f"score {candidate.score:g} below {chosen.score:g}"
    return "equal score, later in order"


def choices(model):
    """Returns [{phase, operation, kernel_id, score, others: {kernel_id: reason}}]."""
    found = []
    with torch.inference_mode():
        for phase, operation, tensors, parameters in calls(model):
            report = lz.explain(operation, *tensors, **parameters)
            chosen = next(c for c in report.candidates if c.kernel_id == report.kernel_id)
            others = {c.kernel_id: main_reason(c, chosen) for c in report.candidates if c.kernel_id != report.kernel_id}
            found.append(
                {
                    "phase": phase,
                    "operation": report.operation,
                    "kernel_id": report.kernel_id,
                    "score": chosen.score,
                    "others": others,
                }
            )
    return found
