"""Products of 1 to 16 rows with weights in every format on a GPU: time, and bytes of the weight a second.

    python bench/gpu/products.py > result.json            # --rows 1,4,16 --rounds 7 --formats bf16,int4 --shapes 4096x4096

Each side is a CUDA graph of calls over copies of its weight that are larger together than the second-level cache, so that
every call reads its weight from memory, as a decode step does. Sides run in turns; a time is the median of the rounds.
"share" is the weight's bytes a second as a part of the device's copy rate (bytes read and written by a large copy);
"over_bf16" is the time of torch's bf16 product divided by this one. Each result is first compared with that of the
kernel that a call without `kernel=` gets.
"""

import argparse
import json
import statistics
import sys

import layerzero as lz
import torch
from torch.nn import functional as F

BF16 = torch.bfloat16
SHAPES = "1024x4096,4096x4096,14336x4096,4096x14336,2048x2048,128256x4096"
CACHE = 160 << 20  # bytes: more than any second-level cache
MOST_COPIES = 64
LARGEST_CHECK = 1 << 26  # weights; torch's row takes some 20 bytes for each
GGUF = {"q4_0": (18, 32), "q8_0": (34, 32), "q4_k": (144, 256), "q6_k": (210, 256)}


def codes(low, high, *shape):
    return torch.randint(low, high, shape, device="cuda", dtype=torch.uint8)


def scales(*shape):
    return (torch.rand(shape, device="cuda") * 0.01 + 0.001).to(BF16)


def bf16(n, k):
    w = torch.randn(n, k, device="cuda", dtype=BF16)
    return (w,), {"torch": lambda x, w: F.linear(x, w), "own": lambda x, w: lz.linear(x, w, kernel="cuda.mlp.linear")}


def quantized(format, w, scale, **more):
    kernel = "cuda.mlp.linear.quantized" + (".nvfp4" if format == "nvfp4" else "")
    tensors = (w, scale, *more.values())
    names = tuple(more)

    def call(x, w, scale, *rest, kernel=kernel):
        return lz.linear_quantized(x, w, scale, format, kernel=kernel, **dict(zip(names, rest, strict=True)))

    return tensors, {"own": call, "chosen": lambda *t: call(*t, kernel=None)}


def int8(n, k):
    return quantized("int8", codes(0, 256, n, k).view(torch.int8), scales(n, 1))


def int4(n, k, group=128):
    tensors, sides = quantized("int4", codes(0, 256, n, k // 2), scales(n, k // group))
    return tensors, sides


def int4_packed(n, k):
    w = codes(0, 256, n, k // 2)
    return quantized("int4", w, scales(n, k // 32), packed=lz.linear_prepack(w))


def uint4_zeros(n, k):
    zero = codes(0, 16, n, k // 128).int()
    return quantized("uint4", codes(0, 256, n, k // 2), scales(n, k // 128), zero_point=zero)


def fp8(n, k):
    return quantized("fp8_e4m3", codes(0, 112, n, k).view(torch.float8_e4m3fn), scales(n, 1).float())


def fp8_blocks(n, k):
    w = codes(0, 112, n, k).view(torch.float8_e4m3fn)
    return quantized("fp8_e4m3", w, scales(max(1, n // 128), k // 128).float())


def mxfp4(n, k):
    return quantized("mxfp4", codes(0, 256, n, k // 2), codes(118, 124, n, k // 32))


def nvfp4(n, k):
    scale = codes(40, 90, n, k // 16).view(torch.float8_e4m3fn)
    return quantized("nvfp4", codes(0, 256, n, k // 2), scale, tensor_scale=torch.full((1, 1), 1e-3, device="cuda"))


def torch_int4(n, k):
    """torch's own int4 product, groups of 128."""
    w = torch.ops.aten._convert_weight_to_int4pack(codes(0, 256, n, k // 2), 8)
    zeros = torch.zeros(k // 128, n, 2, device="cuda", dtype=BF16)
    zeros[..., 0] = scales(k // 128, n)
    return (w, zeros), {"torch": lambda x, w, z: torch.ops.aten._weight_int4pack_mm(x, w, 128, z)}


def gguf(format):
    size, values = GGUF[format]

    def make(n, k):
        w = codes(0, 112, n, k // values * size)  # scales are finite

        def call(x, w, kernel="cuda.mlp.linear.gguf"):
            return lz.linear_gguf(x, w, format, kernel=kernel)

        return (w,), {"own": call, "chosen": lambda x, w: call(x, w, None)}

    return make


FORMATS = {
    "bf16": bf16,
    "int8": int8,
    "int4": int4,
    "int4_packed_g32": int4_packed,
    "uint4_zeros": uint4_zeros,
    "fp8": fp8,
    "fp8_blocks": fp8_blocks,
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "torch_int4": torch_int4,
    **{name: gguf(name) for name in GGUF},
}


def copy_rate():
    """Returns bytes read and written a second by a copy of 1 GiB."""
    a = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    b = torch.empty_like(a)
    times = [seconds(lambda: b.copy_(a)) for _ in range(8)]
    return 2 * a.numel() / statistics.median(times[2:])


def seconds(run):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def captured(call, x, copies):
    for tensors in copies[:2]:
        call(x, *tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for tensors in copies:
            call(x, *tensors)
    return graph


def size_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def difference(a, b):
    a, b = a.float(), b.float()
    return ((a - b).abs().amax(-1) / b.abs().amax(-1).clamp(min=1e-6)).max().item()


def measured(name, make, n, k, rows, rounds, largest):
    """Yields one row for each side and number of rows."""
    tensors, sides = make(n, k)
    sides = {s: f for s, f in sides.items() if s != "chosen"} if n * k > largest else sides
    read = size_of(tensors) - (size_of(tensors[:1]) if name == "int4_packed_g32" else 0)
    count = max(2, min(MOST_COPIES, -(-CACHE // read)))
    copies = [tensors, *(tuple(t.clone() for t in tensors) for _ in range(count - 1))]
    for m in rows:
        x = torch.randn(m, k, device="cuda", dtype=BF16)
        graphs, results = {}, {}
        for side, call in sides.items():
            found = {"format": name, "n": n, "k": k, "rows": m, "side": side, "bytes": read}
            try:
                results[side] = call(x, *tensors)
                graphs[side] = captured(call, x, copies if side != "chosen" else copies[:2]), found
            except Exception as error:
                torch.cuda.synchronize()
                yield found | {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        samples = {side: [] for side in graphs}
        for number in range(rounds + 1):
            for side in list(graphs) if number % 2 else reversed(list(graphs)):
                samples[side].append(seconds(graphs[side][0].replay))
        for side, (_, found) in graphs.items():
            calls = len(copies) if side != "chosen" else 2
            found["us"] = statistics.median(samples[side][1:]) / calls * 1e6
            other = next((results[s] for s in ("chosen", "torch") if s in results and s != side), None)
            if side == "own" and other is not None:
                found["difference"] = difference(results[side], other)
            yield found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", default=",".join(FORMATS))
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("products: wanted a CUDA device, got none")
    torch.manual_seed(0)
    rate, found = copy_rate(), []
    rows = [int(m) for m in args.rows.split(",")]
    for shape in args.shapes.split(","):
        n, k = (int(v) for v in shape.split("x"))
        plain = {}
        for name in args.formats.split(","):
            try:
                results = list(measured(name, FORMATS[name], n, k, rows, args.rounds, LARGEST_CHECK))
            except Exception as error:
                results = [{"format": name, "n": n, "k": k, "error": f"{type(error).__name__}: {str(error)[:200]}"}]
            torch.cuda.empty_cache()
            for row in results:
                if "us" in row:
                    if (row["format"], row["side"]) == ("bf16", "torch"):
                        plain[row["rows"]] = row["us"]
                    row["share"] = row["bytes"] / row["us"] * 1e6 / rate
                    row["over_bf16"] = plain.get(row["rows"], float("nan")) / row["us"]
                    print(
                        f"{shape:>12} {row['format']:>16} {row['side']:>7} rows {row['rows']:>2} {row['us']:9.2f} us, "
                        f"share {row['share']:5.2f}, {row['over_bf16']:5.2f} x bf16, {row.get('difference', 0):.1e}",
                        file=sys.stderr,
                    )
                else:
                    print(f"{shape:>12} {row['format']:>16} {row.get('side', '')} {row['error']}", file=sys.stderr)
            found += results
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "layerzero": lz.__version__}
    json.dump(about | {"copy_bytes_a_second": rate, "results": found}, sys.stdout, indent=1)
    print()
    return 1 if any("error" in row or row.get("difference", 0) > 3e-2 for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
