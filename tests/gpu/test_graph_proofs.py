"""Proofs of graph safety on a device: what captures, what cannot, and strict mode."""

import layerzero as lz
import pytest
import torch

PLACE = "cuda" if torch.cuda.is_available() else "cpu"  # a module is imported before its tests are skipped
X = torch.arange(64 * 256, device=PLACE, dtype=torch.float32).view(64, 256).sin()
W = torch.linspace(1, 2, 256, device=PLACE)


@pytest.fixture(autouse=True)
def fresh(tmp_path):
    before = lz.policy_in_force()["keys"]["cache_dir"]["value"]
    lz.configure(cache_dir=str(tmp_path))
    lz.reset_health()
    yield
    lz.reset_health()
    lz.configure(cache_dir=before)


@pytest.fixture
def planted():
    names = []

    def plant(name, function, priority=100, **facts):
        facts = {"supported_dtypes": ["float32"], "platform": "cuda", "min_sm": None, "max_sm": None} | facts
        lz.register_kernel("norm.rms", name, priority=priority, **facts)(function)
        names.append(name)

    yield plant
    for name in names:
        lz.unregister_kernel("norm.rms", name)


def right(input, weight, eps, weight_offset=None):
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)


def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    graph.replay()
    torch.cuda.synchronize()
    return result


def test_strict_mode_uses_what_is_proven(planted):
    def waits(input, weight, eps, weight_offset=None):
        return right(input, weight, eps) * float(input.isfinite().all().item())

    def stale(input, weight, eps, weight_offset=None):
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros_like(input)
        return right(input, weight, eps)

    planted("tests.waits", waits, 100, is_cuda_graph_safe=True)
    planted("tests.stale", stale, 99, is_cuda_graph_safe=True)
    planted("tests.silent", right, 98)
    with lz.policy(graph_strict_mode=True), pytest.raises(lz.CudaGraphUnsafeError) as error:
        captured(lambda: lz.rms_norm(X, W))
    assert "cuda.norm.rms (not proven on this device)" in str(error.value)
    torch.cuda.synchronize()
    found = {proof.kernel_id: proof for proof in lz.graphs.verify("rms_norm", X, W)}
    assert found["tests.waits"].verdict == "failed_before_write", found
    assert found["tests.stale"].verdict == "wrong", found
    assert found["tests.silent"].verdict == found["cuda.norm.rms"].verdict == "graph_safe", found
    assert lz.explain("rms_norm", X, W, capturing=True).kernel_id == "tests.silent"
    with lz.policy(graph_strict_mode=True):
        torch.testing.assert_close(captured(lambda: lz.rms_norm(X, W)), right(X, W, 1e-6))
        with pytest.raises(lz.CudaGraphUnsafeError, match="not proven"):
            captured(lambda: lz.rms_norm(X.bfloat16(), W.bfloat16()))


def test_a_choice_holds_for_a_capture(planted):
    ran = []

    def kernel(name):
        def run(input, weight, eps, weight_offset=None):
            ran.append(name)
            return right(input, weight, eps)

        return run

    planted("tests.first", kernel("first"), 99, is_cuda_graph_safe=True)

    def both():
        lz.rms_norm(X, W)
        planted("tests.second", kernel("second"), 100, is_cuda_graph_safe=True)
        return lz.rms_norm(X, W)

    captured(both)
    assert ran == ["first", "first"]
    captured(lambda: lz.rms_norm(X, W))
    assert ran[-1] == "second"


def test_every_call_of_a_function_at_its_shapes():
    q = torch.randn(2, 128, 8, 64, device="cuda", dtype=torch.bfloat16)
    x, w = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16), torch.randn(256, 512, device="cuda").bfloat16()

    def program():
        return lz.attention(q, q, q, causal=True, layout="BSHD"), lz.linear(x, w)

    found = lz.graphs.verify(program)
    bad = [proof for proof in found if proof.verdict not in ("graph_safe", "not_tried")]
    assert not bad and len({proof.operation for proof in found}) == 2, found
    with lz.policy(graph_strict_mode=True):
        for got, wanted in zip(captured(program), program(), strict=True):
            torch.testing.assert_close(got.float(), wanted.float(), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("call", ["kv_append_paged", "sample_topk", "paged_attention"])
def test_tables_caches_and_random_numbers(call):
    caches = torch.randn(8, 16, 2, 64, device="cuda", dtype=torch.bfloat16)
    new = torch.randn(3, 2, 64, device="cuda", dtype=torch.bfloat16)
    tables = torch.arange(6, device="cuda", dtype=torch.int32).view(3, 2)
    arguments = {
        "kv_append_paged": {
            "key_cache": caches,
            "value_cache": caches.clone(),
            "key": new,
            "value": new,
            "slots": torch.tensor([1, 20, 40], device="cuda"),
        },
        "sample_topk": {"logits": torch.randn(3, 1000, device="cuda"), "k": 40},
        "paged_attention": {
            "query": torch.randn(3, 1, 8, 64, device="cuda", dtype=torch.bfloat16),
            "key_cache": caches,
            "value_cache": caches.clone(),
            "block_tables": tables,
            "context_lens": torch.tensor([20, 7, 32], device="cuda", dtype=torch.int32),
        },
    }[call]
    found = lz.graphs.verify(call, **arguments)
    assert "graph_safe" in {proof.verdict for proof in found}, found
    # References of torch may wait for the device, and say nothing of graphs.
    bad = [
        p for p in found if p.verdict in ("wrong", "failed_before_write") and not p.kernel_id.startswith("torch.ref.")
    ]
    assert not bad, found


def test_captured_steps_in_strict_mode():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=500, num_hidden_layers=2, max_position_embeddings=512, **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    report = lz.kernelize(model)
    ids = torch.arange(3, 23, device="cuda")[None]
    with lz.policy(graph_strict_mode=True):
        model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    entry = report.replaced["decoder"]
    assert not entry.get("not_captured") and entry["captured"] >= 8, entry
    assert lz.graphs.proofs()
