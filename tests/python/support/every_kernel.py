"""What the random tests share: every kernel that may run a call, compared with a formula in float64."""

import layerzero as lz
import torch

BOUND = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def every_kernel(name, **arguments):
    """(kernel id, results) of each kernel that is installed and admits the call."""
    for candidate in lz.explain(name, **arguments).candidates:
        if candidate.admissible:
            result = getattr(lz, name)(**arguments, kernel=candidate.kernel_id)
            yield candidate.kernel_id, result if isinstance(result, tuple) else (result,)


def assert_close(kernel, got, want, dtype=None, row_max=False, roundings=1):
    """|got - want| within A11's bound, once for each rounding on the way: of 1 + |want|, or of the row's largest |want|."""
    bound = BOUND[dtype or got.dtype] * roundings
    want = want.double()
    scale = want.abs().amax(-1, keepdim=True) if row_max and want.numel() else 1 + want.abs()
    wrong = (got.double() - want).abs() > bound * scale
    assert got.shape == want.shape and not bool(wrong.any()), (kernel, got[wrong], want[wrong])


def memory(tensor, how):
    """The same values: as they are, with a gap between rows, with the last two axes swapped in memory."""
    if how == "padded" and tensor.dim():
        return torch.cat((tensor, torch.full_like(tensor, float("nan"))), -1)[..., : tensor.shape[-1]]
    if how == "transposed" and tensor.dim() > 1:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    return tensor
