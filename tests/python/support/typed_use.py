"""A program that uses the whole typed surface: type checkers read it, nobody runs it (test_types.py)."""

from typing import Any

import layerzero as lz
import torch
from typing_extensions import assert_type

x = torch.ones(2, 8)
w = torch.ones(8)
assert_type(lz.rms_norm(x, w), torch.Tensor)
assert_type(lz.attention(x, x, x), torch.Tensor)
assert_type(lz.attention(x, x, x, return_lse=True), tuple[torch.Tensor, torch.Tensor])
lz.rms_norm(x, w, eps=1e-5, kernel="hwy.norm.rms")
report = lz.explain("norm.rms", x, w, device="h100")
for candidate in report.candidates:
    print(candidate.kernel_id)
ok, reasons = lz.validate("hwy.norm.rms", x, w)
print(ok, [reason.code for reason in reasons])
with lz.policy(deterministic=True), lz.prefer("torch"), lz.disabled():
    print(lz.which("rms_norm", x, w)["kernel_id"])
handle = lz.prepare("norm.rms", x, w)
print(handle(x, w))
lz.lock("norm.rms", "hwy.norm.rms")
lz.unlock("norm.rms")
print(lz.doctor().devices, lz.version_info.build, lz.__version__)
try:
    lz.rms_norm(x, w)
except lz.NoKernelFoundError as error:
    print(error.operation, error.failures)
registry = lz.KernelRegistry()
schema = lz.OperationSchema(
    "mine.scale",
    inputs=(lz.TensorSchema("x", ndim=2, dtype_constraint={torch.float32, "bfloat16"}, shape_vars=("rows", "_")),),
    outputs=(lz.TensorSchema("y", required=False),),
    params={"factor": float},
)
registry.register_schema(schema)
assert_type(schema.validate(x, factor=2.0), list[str])
context = lz.SelectionContext.from_tensors(x, x, x, causal=True)
assert_type(context.head_dim, int | None)
assert_type(lz.SelectionContextBuilder(schema).build(x, device=None, factor=2.0), lz.SelectionContext)
print(registry.select(context).impl(x, x, x), [kernel.kernel_id for kernel in registry.get_candidates("norm.rms")])
norm, fallback = registry.get_schema("norm.rms"), registry.get_fallback("norm.rms")
if norm is not None and fallback is not None:
    print([tensor.shape_vars for tensor in norm.inputs], dict(norm.params), fallback.kernel_id)


@registry.register_kernel("norm.rms", "mine.norm", supported_dtypes=["float32"])
def mine(input: torch.Tensor) -> torch.Tensor:
    return input


assert_type(mine(x), torch.Tensor)
lz.unregister_kernel("norm.rms", "mine.norm")
model = torch.nn.Linear(2, 2)
lz.kernelize(model)
identity = lz.register_tokenizer("path/to/tokenizer.json")
assert_type(lz.tokenize(["a", "b"], identity, return_offsets=True), dict[str, list[Any]])
assert_type(lz.detokenize([1, 2], identity), str | list[str])
caches = lz.KVCacheManager(num_blocks=4, block_size=16)
print(caches.length(caches.allocate(0, 3)), lz.PackedWeights(max_bytes=1024).nbytes, lz.alibi_slopes(8))
print(lz.KVCacheManager, lz.quantize(x, "int8"), lz.sample_topk(x, 2), lz.layer_norm(x, 8))
