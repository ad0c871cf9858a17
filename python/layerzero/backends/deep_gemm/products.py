"""DeepGEMM's product of bfloat16 matrices as a kernel of linear, for every build of the library."""

import torch

from layerzero.backends.torch.common import as_rows


def linear_of(bf16_gemm_nt):
    def linear(input, weight, bias):
        output = input.new_empty((*input.shape[:-1], weight.shape[0]))
        if output.numel():
            bf16_gemm_nt(as_rows(input), weight, as_rows(output))
        return output

    return linear


def probe_of(linear):
    """Returns a probe: the smallest call whose result is known, on the device. DeepGEMM compiles a kernel for it."""

    def probe():
        x = torch.eye(64, device="cuda", dtype=torch.bfloat16)
        weight = torch.arange(4096, device="cuda").remainder(251).view(64, 64).to(torch.bfloat16)
        if not torch.equal(linear(x, weight, None), weight.t()):
            raise RuntimeError("bf16_gemm_nt: the product with the unit matrix is not the transposed weight")

    return probe
