"""Files of results name the machine by what its kernels can run on, not by the model alone."""

import pytest
from machine import machine, machine_type


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("model name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx avx2 fma\n", "amd-epyc-avx2"),
        ("model name\t: AMD EPYC\nflags\t\t: sse4_2 avx2 avx512f avx512_bf16\n", "amd-epyc-avx512-bf16"),
        (
            "model name\t: AMD EPYC\nflags\t\t: avx512f avx512_bf16 avx512_vp2intersect\n",
            "amd-epyc-avx512-vp2intersect",
        ),
        (
            "model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz\nflags\t\t: avx512f avx512_bf16 amx_int8\n",
            "intel-xeon-platinum-8481c-amx-int8",
        ),
        ("model name\t: Some Core\nFeatures\t: fp asimd\n", "some-core-neon"),
    ],
)
def test_model_and_widest_instruction_set(cpuinfo, name):
    assert machine_type(cpuinfo) == name


def test_this_machine_has_a_name_and_its_cores():
    assert machine().endswith("c") and machine()[0].isalnum()
