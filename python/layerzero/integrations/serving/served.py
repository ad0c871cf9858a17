"""Whether kernels, not references, serve the calls that the attention backend would make; LayerZero is asked itself."""

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from layerzero.inspection import explain_call

# The engines' names of 8-bit caches, and what is in their bytes.
CACHES = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_HEADS, _KV_HEADS, _PAGES = 8, 2, 4


def unserved(
    head_size: int, dtype: torch.dtype, cache: str | None, page_size: int, sinks: bool, device: str | None = None
) -> str | None:
    """The reasons against kernels for a step of these properties, or None. device: a simulated one; by default this
    machine's, and without one nothing is known, so nothing is refused."""
    if device is None and not torch.cuda.is_available():
        return None
    return _unserved(head_size, dtype, CACHES.get(cache or ""), page_size, sinks, device)


def unserved_latents(dtype: torch.dtype, cache: str | None = None, device: str | None = None) -> str | None:
    """The same for decode steps over latents. Those of 8 bits are refused on every machine: nothing but torch's expression of
    the operation takes them, which reads the whole cache."""
    if cache not in (None, "auto", "float16", "bfloat16"):
        return (
            f"mla_decode_paged: no kernel reads latents of {cache} next to a query of {str(dtype).removeprefix('torch.')}; leave "
            "the cache's dtype at auto, or choose a backend of the engine's own"
        )
    if device is None and not torch.cuda.is_available():
        return None
    return _unserved_latents(dtype, device)


@functools.cache
def _unserved_latents(dtype: torch.dtype, device: str | None) -> str | None:
    place: dict[str, Any] = {"device": _place(device)}
    latent, rotated = (torch.zeros(2, _HEADS, width, dtype=dtype, **place) for width in (512, 64))
    cache, parts = (torch.zeros(_PAGES, 16, width, dtype=dtype, **place) for width in (512, 64))
    lists = (torch.tensor(one, dtype=torch.int32, **place) for one in ([0, 1, 2], [0, 1], [2, 2]))
    return _against([("mla_decode_paged", (latent, rotated, cache, parts, *lists, 0.1), {}, True)], device)


@functools.cache
def _unserved(head_size: int, dtype: Any, stored: Any, page_size: int, sinks: bool, device: str | None) -> str | None:
    return _against(_calls(head_size, dtype, stored, page_size, sinks, device), device)


def _place(simulated: str | None) -> torch.device:
    return torch.device("cpu") if simulated else torch.device("cuda", torch.cuda.current_device())


def _against(calls: Any, device: str | None) -> str | None:
    """In a thread of its own and in float32: an engine sets a dtype and a device for new tensors while it builds a model, the
    device by a mode of torch that no call of an operation may be in; and libraries are tried here."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_reasons, calls, device).result()
    finally:
        torch.set_default_dtype(dtype)


def _reasons(calls: Any, device: str | None) -> str | None:
    found = []
    for name, tensors, given, capturing in calls:
        # Other libraries than the chosen kernel's stay as they are: some compile when they are tried.
        report = explain_call(name, tensors, given, device, of_chosen=True, capturing=capturing)
        chosen = next((c for c in report.candidates if c.kernel_id == report.kernel_id), None)
        if chosen is None or chosen.source in ("ref", "torch.ref"):
            reasons = {r.message for c in report.candidates if c.source == "cuda" for r in c.reasons}
            found.append(f"{name}: no kernel of LayerZero or of an installed library: {'; '.join(sorted(reasons)[:3])}")
    return " | ".join(found) or None


def _calls(
    head_size: int, dtype: Any, stored: Any, page_size: int, sinks: bool, simulated: str | None
) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any], bool]]:
    place: dict[str, Any] = {"device": _place(simulated)}
    query = torch.zeros(2, _HEADS, head_size, dtype=dtype, **place)
    rows = torch.zeros(2, _KV_HEADS, head_size, dtype=dtype, **place)
    cache = torch.zeros(_PAGES, page_size, _KV_HEADS, head_size, dtype=stored or dtype, **place)
    index: Any = functools.partial(torch.tensor, dtype=torch.int32, **place)
    options: dict[str, Any] = {"sinks": torch.zeros(_HEADS, dtype=dtype, **place)} if sinks else {}
    scales = (
        {n: torch.ones(1, dtype=torch.float32, **place) for n in ("k_scale", "v_scale")} if stored is not None else {}
    )
    yield "kv_append_paged", (cache, cache.clone(), rows, rows, index([0, 1])), {"layout": "NHD", **scales}, True
    tables, lengths = index([[0, 1], [2, 3]]), index([2, 2])
    yield "paged_attention", (query[:, None], cache, cache, tables, lengths), options | scales, True
    lists = index([0, 1, 2]), index([0, 1, 2]), index([0, 2]), index([2, 2])
    yield "paged_prefill_attention", (query, cache, cache, *lists), options | scales, False
    if stored is None:
        yield "ragged_attention", (query, rows, rows, index([0, 1, 2]), index([0, 1, 2])), options, False
