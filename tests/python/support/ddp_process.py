"""One of two processes of a DistributedDataParallel run: trains a kernelized and a plain model alike, then compares them.

usage: ddp_process.py RANK RENDEZVOUS_FILE
"""

import os
import sys

import layerzero as lz
import torch
from small_llama import TOLERANCE, error, ids_of, logits_of, tiny
from torch.nn.parallel import DistributedDataParallel


def main(rank, rendezvous):
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    ids = ids_of(4)[rank::2]  # each process has rows of its own
    for each in (model, reference):
        parallel = DistributedDataParallel(each.train())
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(2):
            parallel(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        each.eval()
    trained = logits_of(reference)
    assert error(trained, logits_of(tiny())) > 0.01, "nothing was learnt"
    report = model.__dict__["_layerzero_kernelized"].report
    assert report.replaced["decoder"]["calls"] == 0, "training is the model's own"
    parallel = DistributedDataParallel(model)
    assert error(logits_of(parallel), trained) <= TOLERANCE
    assert report.replaced["decoder"]["calls"] == 1
    assert lz.kernelize(parallel) is not report and error(logits_of(parallel), trained) <= TOLERANCE
    assert lz.unkernelize(parallel) and error(logits_of(parallel), trained) <= TOLERANCE
    gathered = [torch.empty_like(trained) for _ in range(2)]
    torch.distributed.all_gather(gathered, logits_of(model))
    assert torch.equal(gathered[0], gathered[1]), "the processes have parted"
    torch.distributed.destroy_process_group()
    print("alike", flush=True)
    os._exit(0)  # torch 2.13's threads for gloo abort one process in ten that ends as usual, without LayerZero too


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
