"""vLLM's attention backend LAYERZERO on the device: results, steps replayed by a CUDA graph, and a small engine.

Needs vLLM 0.25 (its Python path may hold it without its dependencies' other parts).
"""

import importlib
import json
import logging
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

try:
    importlib.import_module("vllm.v1.attention.backend")
except ImportError as error:
    pytest.skip(f"needs vLLM 0.25: {error}", allow_module_level=True)

import layerzero as lz  # noqa: E402
from layerzero.integrations.serving import served  # noqa: E402

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/python/support"))
from engine_runs import of_engines  # noqa: E402
from vllm_step import HEADS, Step  # noqa: E402

STEPS = {
    "decode": [(20, 1), (3, 1), (640, 1)],
    "prompts": [(0, 5), (0, 400), (0, 17)],
    "mixed": [(20, 1), (640, 1), (0, 90), (333, 200)],
}
OPTIONS = {
    "plain": {},
    "window": {"sliding_window": 12},
    "cap": {"logits_soft_cap": 5.0},
    "alibi": {"alibi_slopes": [2.0**-i for i in range(HEADS)]},
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS, dtype=torch.bfloat16)},
}


@pytest.fixture(scope="module")
def plugin():
    names = ("attention", "metadata")
    found = {name: importlib.import_module(f"layerzero.integrations.vllm.{name}") for name in names}
    return types.SimpleNamespace(vllm=importlib.import_module("vllm.v1.attention.backend"), **found)


def on_device(options):
    return {name: one.cuda() if isinstance(one, torch.Tensor) else one for name, one in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step(plugin, step, options):
    Step(plugin, STEPS[step], device="cuda").check(**on_device(OPTIONS[options]))


@pytest.mark.parametrize("step", STEPS)
def test_eight_bit_caches(plugin, step):
    Step(plugin, STEPS[step], stored=torch.float8_e4m3fn, device="cuda").check()


def test_heads_before_positions_in_memory(plugin):
    Step(plugin, STEPS["mixed"], heads_first=True, device="cuda").check()


def test_a_shared_prefix(plugin):
    Step(plugin, [(40, 1), (50, 1), (33, 7)], shared=32, device="cuda").check()


def test_a_graph_of_a_decode_step_serves_later_ones(plugin):
    step = Step(plugin, [(1000, 1), (3, 1), (64, 1)], device="cuda")
    later = Step(plugin, [(37, 1), (11, 1), (80, 1)], device="cuda")
    metadata = step.built(captured=True)
    with torch.device("cuda"):
        layer = plugin.attention.LayerZeroImpl(HEADS, 64, 0.125, 2)
    output, slots = torch.zeros_like(step.query), step.slots()

    def run():
        layer.do_kv_cache_update(step.layer, step.key, step.value, step.memory, slots)
        layer.forward(step.layer, step.query, step.key, step.value, step.memory, metadata, output)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    step.check(output)
    for own, new in ((step.query, later.query), (step.key, later.key), (step.value, later.value)):
        own.copy_(new)
    step.memory[: len(later.memory)] = later.memory
    step.table[:, : later.width] = later.table
    step.lengths.copy_(later.lengths)
    slots.copy_(later.slots())
    graph.replay()
    later.memory = step.memory
    later.check(output)


def test_nothing_is_refused_that_is_served(plugin):
    for size in (64, 96, 128, 256):
        assert served.unserved(size, torch.bfloat16, "auto", 16, False) is None
    assert served.unserved(128, torch.float16, "fp8", 16, False) is None
    assert served.unserved(128, torch.bfloat16, "auto", 16, True) is None
    assert served.unserved_latents(torch.bfloat16, "auto") is None


def test_operations_under_vllm_s_names(plugin):
    from layerzero.integrations import vllm as root
    from vllm import ir

    logging.getLogger("layerzero").setLevel(logging.WARNING)
    root.register()
    x, weight = torch.randn(5, 256, device="cuda").bfloat16(), torch.randn(256, device="cuda").bfloat16()
    impls = ir.ops.rms_norm.impls
    got, want = (impls[name].impl_fn(x, weight, 1e-5) for name in ("layerzero", "native"))
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    impls = ir.ops.fused_add_rms_norm.impls
    got, want = (impls[name].impl_fn(x.clone(), x.clone(), weight, 1e-5) for name in ("layerzero", "native"))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)


def test_engines_give_the_same_first_tokens(tmp_path):
    """Two layers, decode steps as graphs: LAYERZERO beside FLASH_ATTN, each in a process with the plugin's entry point."""
    result, ours = of_engines("vllm", ["layerzero", "flash_attn"], tmp_path, {"PYTHONPATH": with_entry_point(tmp_path)})
    assert ours["backends"] == ["LayerZeroImpl"]
    assert any("decode.block_table" in name for name in ours["kernels"]), ours["kernels"]
    rows = [row for row in result["compared"] if row["engine"] == "layerzero"]
    assert all(row["first_logprob_difference"] < 0.1 for row in rows), rows
    assert all(row["equal_first_tokens"] >= 0.75 for row in rows), rows


def test_answers_leave_flash_attn_s_only_where_candidates_are_near(tmp_path):
    """bench/serving/vllm_logprobs.py with two layers: log-probabilities of the same tokens, in prefill and in decode."""
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "bench/serving/vllm_logprobs.py"), "--out", str(out), "--layers", "2"]
    command += ["--engines", "flash_attn", "layerzero", "--batch", "8", "4", "--input", "64", "--output", "32"]
    environment = os.environ | {"PYTHONPATH": with_entry_point(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    logs = "".join(path.read_text()[-3000:] for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    rows = [row for row in json.loads(out.read_text())["compared"] if row["engine"] == "layerzero"]
    assert len(rows) == 2
    for row in rows:
        for part in ("scored", "decoded"):
            assert row[part]["largest_difference"] < 0.2, row
            assert row[part]["gaps_there"] is None or row[part]["gaps_there"]["largest"] < 0.2, row
        assert all(gap < 0.2 for gap in row["decoded"]["gaps_at_first_difference"]), row


def with_entry_point(folder):
    """A Python path on which the plugin's entry point is found, also where LayerZero is a folder, not a distribution."""
    info = folder / "layerzero_kernels-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: layerzero-kernels\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nlayerzero = layerzero.integrations.vllm:register\n")
    return os.pathsep.join([str(Path(lz.__file__).parents[1]), str(folder), os.environ.get("PYTHONPATH", "")])
