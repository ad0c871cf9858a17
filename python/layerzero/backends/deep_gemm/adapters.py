"""DeepGEMM by its own package."""

from deep_gemm import bf16_gemm_nt

from layerzero.backends.deep_gemm.products import linear_of, probe_of

linear = linear_of(bf16_gemm_nt)
probe = probe_of(linear)
