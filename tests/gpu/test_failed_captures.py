"""After a capture that failed, torch draws random numbers, runs on its stream and captures as before."""

import pytest
import torch
from layerzero.torch import captures


def synchronize():
    torch.cuda.synchronize()  # not permitted in a capture, which it invalidates


def refuse():
    raise ValueError("a reason of its own")


@pytest.mark.parametrize("fail, said", [(synchronize, "capturing"), (refuse, "a reason of its own")])
def test_nothing_is_left_behind(fail, said):
    stream = torch.cuda.current_stream()
    with pytest.raises(Exception, match=said), captures.capture(torch.cuda.CUDAGraph()):
        kept = torch.ones(1 << 20, device="cuda")
        fail()
        kept.add_(1)
    assert torch.cuda.current_stream() == stream
    assert torch.randn(1000, device="cuda").std() > 0.5
    graph = torch.cuda.CUDAGraph()
    with captures.capture(graph):
        drawn = torch.rand(1000, device="cuda")
    graph.replay()
    first = drawn.clone()
    graph.replay()
    assert 0.4 < first.mean() < 0.6 and not torch.equal(first, drawn)


def test_what_records_says_the_first_reason():
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        captures.record(lambda: torch.ones(4, device="cuda").sum().item(), 1)
    torch.randn(4, device="cuda")
