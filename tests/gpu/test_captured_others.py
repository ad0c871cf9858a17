"""Models with layers that no captured step has, on the device: the model's own tokens, and a report that says why."""

import copy

import block_families
import layerzero as lz
import pytest
import torch

pytest.importorskip("transformers")


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "gpt_oss", "mistral"])
def test_the_same_tokens_and_a_reason(name, cache):
    theirs = block_families.build(name).to("cuda").eval()
    ours = copy.deepcopy(theirs)
    report = lz.kernelize(ours, quiet=True)
    assert report.replaced, report
    ids = torch.arange(3, 43, device="cuda").view(2, 20)
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "cache_implementation": cache}
    for _ in range(2):
        expected = theirs.generate(ids, disable_compile=True, **options)
        assert torch.equal(ours.generate(ids, disable_compile=True, **options), expected), report
    assert "its steps are not captured: " in str(report), report
    assert "captured" not in report.replaced.get("decoder", {}), report
