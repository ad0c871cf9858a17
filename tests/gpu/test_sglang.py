"""SGLang's backends named layerzero on the device: results, steps replayed by a CUDA graph, and a small engine.

Needs SGLang 0.5.15 or later for the engine; without it the backends run over the substitutes of tests/python/support.
"""

import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/python/support"), str(ROOT / "tests/python")]
from engine_runs import of_engines  # noqa: E402
from sglang_step import HEADS, Step, layer_of  # noqa: E402
from test_sglang import STEPS, plugin  # noqa: E402, F401

OPTIONS = {
    "plain": {},
    "window": {"sliding_window_size": 11},
    "cap": {"logit_cap": 5.0},
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS, dtype=torch.bfloat16)},
}


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step(plugin, step, options, page):  # noqa: F811
    given = {name: one.cuda() if isinstance(one, torch.Tensor) else one for name, one in OPTIONS[options].items()}
    Step(plugin, STEPS[step], page, device="cuda").check(**given)


@pytest.mark.parametrize("step", STEPS)
def test_eight_bit_caches(plugin, step):  # noqa: F811
    Step(plugin, STEPS[step], 16, stored=torch.float8_e4m3fn, device="cuda").check()


def test_a_pool_for_windows(plugin):  # noqa: F811
    Step(plugin, STEPS["decode"], 16, split=True, device="cuda").check(sliding_window_size=11)


@pytest.mark.parametrize("page", [1, 16])
def test_a_graph_of_a_decode_step_serves_later_ones(plugin, page):  # noqa: F811
    step = Step(plugin, [(200, 1), (3, 1), (64, 1)], page, device="cuda")
    later = Step(plugin, [(37, 1), (11, 1), (80, 1)], page, device="cuda")
    backend = plugin.attention.LayerZeroBackend(step.runner())
    backend.init_cuda_graph_state(4, 4)
    batch, layer = step.batch(), layer_of(plugin.kind)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)

    def run():
        return backend.forward(step.query, step.key, step.value, layer, batch)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    graph.replay()
    step.check(out)
    for own, new in zip(step.pool.buffers, later.pool.buffers, strict=True):
        own[: len(new)] = new
    for name in ("query", "key", "value"):
        getattr(step, name).copy_(getattr(later, name))
    step.slots.copy_(later.slots)
    next_batch = later.batch()
    batch.out_cache_loc.copy_(next_batch.out_cache_loc)
    backend.init_forward_metadata_out_graph(next_batch)
    graph.replay()
    later.pool = step.pool
    later.check(out)


def test_engines_give_the_same_first_tokens(tmp_path):
    """Two layers, decode steps as graphs: layerzero with FlashAttention 3."""
    try:
        importlib.metadata.version("sglang")  # not an import: the substitutes are modules of that name
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("SGLang is not installed")
    result, ours = of_engines("sglang", ["fa3", "layerzero"], tmp_path)
    assert any("decode.block_table" in name for name in ours["kernels"]), ours["kernels"]
    rows = [row for row in result["compared"] if row["engine"] == "layerzero"]
    assert all(row["equal_first_tokens"] >= 0.75 for row in rows), rows
