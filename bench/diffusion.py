"""Times small models of diffusers by its own attention backends and by LayerZero: bench/results/diffusers-<machine>.json.

python bench/diffusion.py [--device cuda] [--dtype bfloat16] [--rounds 15] [MODEL ...]

diffusers has to be importable (requirements/diffusers.txt, .venv/diffusers). Milliseconds of a forward: medians of ROUNDS after one that
does not count, each subject once in every round, in turns. "control" is the model's own code a second time: its ratio says what noise is.
ratio: the best of diffusers' own over LayerZero's, above 1 where LayerZero is faster; spread: (90 % - 10 %) / median. host_ms: until the
forward returned, which on a CUDA device is before its end where the device is what takes the time.
"""

import argparse
import functools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(Path(sys.prefix) / "diffusers")]
OWN = {"cpu": ("native",), "cuda": ("native", "_native_flash", "_native_cudnn", "_native_efficient")}
BARS = {"cpu": 1.0, "cuda": 1.1}


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """(a model with random weights, arguments of its forward)"""
    import diffusers
    import torch

    rows = torch.randn
    heads = {"num_attention_heads": 8, "attention_head_dim": 64, "num_layers": 2}
    text = {"encoder_hidden_states": rows(2, 77, 512)}
    if name == "flux":
        sizes = {"num_single_layers": 2, "joint_attention_dim": 512, "pooled_projection_dim": 256, "in_channels": 64}
        model = diffusers.FluxTransformer2DModel(**heads, **sizes, axes_dims_rope=[8, 28, 28])
        given = {"hidden_states": rows(2, 576, 64), "pooled_projections": rows(2, 256), "timestep": rows(2)}
        return model, given | text | {"img_ids": 9 * rows(576, 3), "txt_ids": torch.zeros(77, 3)}
    if name == "sd3":
        sizes = {
            "sample_size": 48,
            "caption_projection_dim": 512,
            "joint_attention_dim": 512,
            "pooled_projection_dim": 256,
        }
        model = diffusers.SD3Transformer2DModel(**heads, **sizes, in_channels=16, out_channels=16, qk_norm="rms_norm")
        given = {"hidden_states": rows(2, 16, 48, 48), "pooled_projections": rows(2, 256), "timestep": rows(2)}
        return model, given | text
    if name == "dit":
        model = diffusers.DiTTransformer2DModel(**heads, in_channels=4, out_channels=8, sample_size=48, patch_size=2)
        given = {"hidden_states": rows(2, 4, 48, 48), "class_labels": torch.tensor([1, 2])}
        return model, given | {"timestep": torch.tensor([3, 500])}
    if name == "unet":
        blocks = {"block_out_channels": (128, 256), "layers_per_block": 1, "attention_head_dim": 8}
        down, up = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
        model = diffusers.UNet2DConditionModel(
            **blocks, down_block_types=down, up_block_types=up, cross_attention_dim=512
        )
        return model, {"sample": rows(2, 4, 32, 32), "timestep": torch.tensor([3, 500])} | text
    blocks = {"block_out_channels": (64, 128), "down_block_types": ("DownEncoderBlock2D",) * 2}
    model = diffusers.AutoencoderKL(**blocks, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4)
    return model, {"sample": rows(1, 3, 96, 96)}


def subjects_of(name: str, device: str, dtype: Any) -> tuple[dict[str, Callable[[], Any]], Any]:
    """({subject: a forward}, the report of kernelize); each subject has a model of its own with the same weights."""
    import layerzero as lz
    import torch
    from diffusers.models.attention_dispatch import attention_backend

    torch.manual_seed(0)
    model, given = build(name)
    model = model.eval().to(device, dtype)
    given = {key: value.to(device, dtype if value.is_floating_point() else None) for key, value in given.items()}
    if name == "flux":
        given |= {key: given[key].float() for key in ("img_ids", "txt_ids")}
    served = build(name)[0].eval().to(device, dtype)
    served.load_state_dict(model.state_dict())
    report = lz.kernelize(served)

    def forward(which: Any, backend: str) -> Any:
        with torch.no_grad(), attention_backend(backend):
            return which(**given, return_dict=False)[0]

    subjects = {own: functools.partial(forward, model, own) for own in OWN[device]}
    subjects |= {"control": functools.partial(forward, model, "native")}
    return subjects | {"layerzero": functools.partial(forward, served, "native")}, report


def measure(name: str, device: str, dtype: Any, rounds: int) -> dict[str, Any]:
    import torch

    subjects, report = subjects_of(name, device, dtype)
    results, refused = {}, {}
    for subject, forward in list(subjects.items()):
        try:
            results[subject] = forward()
        except Exception as error:  # a backend of diffusers that this device or shape has not
            refused[subject] = str(error).partition("\n")[0]
            del subjects[subject]
    times: dict[str, list[float]] = {subject: [] for subject in subjects}
    hosts: dict[str, list[float]] = {subject: [] for subject in subjects}
    for turn in range(rounds):
        order = list(subjects.items())
        for subject, forward in order[turn % len(order) :] + order[: turn % len(order)]:
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            forward()
            hosts[subject].append(1e3 * (time.perf_counter() - began))
            if device == "cuda":
                torch.cuda.synchronize()
            times[subject].append(1e3 * (time.perf_counter() - began))
    medians = {subject: statistics.median(values) for subject, values in times.items()}
    best = min((subject for subject in medians if subject in OWN[device]), key=medians.__getitem__)
    error = (results["layerzero"].double() - results["native"].double()).norm() / results["native"].double().norm()
    deciles = {subject: statistics.quantiles(values, n=10) for subject, values in times.items()}
    return {
        "median_ms": medians,
        "host_ms": {subject: statistics.median(values) for subject, values in hosts.items()},
        "spread": {subject: (found[-1] - found[0]) / medians[subject] for subject, found in deciles.items()},
        "best_own": best,
        "ratio": medians[best] / medians["layerzero"],
        "control_ratio": medians["native"] / medians["control"],
        "relative_error": float(error),
        "replaced": {part: [entry["count"], entry["operation"]] for part, entry in report.replaced.items()},
        "left": report.left,
        "refused": refused,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["flux", "sd3", "dit", "unet", "vae"])
    parser.add_argument("--device", choices=tuple(OWN), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import diffusers
    import torch

    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"cpu-{platform.machine()}-{os.cpu_count()}"
    out = options.out or ROOT / "bench/results" / f"diffusers-{machine.lower().replace(' ', '-')}.json"
    found: dict[str, Any] = {"diffusers": diffusers.__version__, "torch": torch.__version__, "dtype": dtype}
    found |= {"device": machine, "rounds": options.rounds, "bar": BARS[options.device], "models": {}}
    found["load_before"] = os.getloadavg()[0]
    for name in options.models:
        row = measure(name, options.device, getattr(torch, dtype), options.rounds)
        found["models"][name] = row | {"passed": row["ratio"] >= found["bar"]}
        print(f"{name}: {row['ratio']:.2f} of {row['best_own']}, control {row['control_ratio']:.2f}", flush=True)
        found["load_after"] = os.getloadavg()[0]
        out.write_text(json.dumps(found, indent=1) + "\n")  # now: a run that is cut off keeps what came


if __name__ == "__main__":
    main()
