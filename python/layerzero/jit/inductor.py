"""What Inductor compiled for references (layerzero.backends.inductor), as artifacts."""

import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero
from layerzero.host.policy import jit_settings
from layerzero.jit import flight, library, store, work


def _facts(call: Any, graph: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Returns all that compiled code depends on."""
    import torch

    free = {name: sorted(axes) for name, axes in call.free.items()}
    return {
        "reference": call.eager.kernel_id,
        "call": [call.operation, call.layout, call.tensors, {name: repr(v) for name, v in call.scalars.items()}, free],
        "graph": graph.print_readable(print_output=False),
        "options": options,
        "torch": [torch.__version__, str(torch.version.cuda)],
        "layerzero": list(_layerzero.build_id()),
        "device": library.device_facts(call.device),
        "place": call.device,  # code names its device
        "flags": library.flags(),
    }


def from_cache(call: Any, graph: Any, options: dict[str, Any], build: Callable[[], Any]) -> Any:
    """Returns what Inductor made of the graph: from an artifact, or by `build`, one process at a time for the same graph."""
    facts, settings = _facts(call, graph, options), jit_settings()
    key, until = store.key_of(facts), time.monotonic() + library.LONGEST_WAIT
    with flight.of_key(key, until), flight.slot(settings.max_concurrent_jit, until):
        if any(node.op == "get_attr" for node in graph.graph.nodes):
            return build()  # it holds tensors, whose values are in no key
        artifact = store.read(key)
        if artifact is not None and (loaded := _loaded(artifact.files["inductor"])) is not None:
            work.found_on_disk()
            return loaded
        library.refuse_failed(key)
        flight.wait_for_memory((settings.memory_mb + settings.headroom_mb) << 20, until)
        with library.remembering_failures(key, facts):
            built = build()
        if (data := _saved(built)) is not None:
            store.write(key, store.Artifact(facts, {"inductor": data}))
    store.cap(settings.cache_max_mb << 20)
    return built


def _loaded(data: bytes) -> Any:
    """Returns the compiled function of an artifact, whose digest was compared; None if this torch cannot load it."""
    from torch._inductor.standalone_compile import CompiledArtifact

    with tempfile.TemporaryDirectory(prefix="layerzero-") as folder:
        path = pathlib.Path(folder, "artifact")
        path.write_bytes(data)
        try:
            return CompiledArtifact.load(path=str(path), format="binary")
        except Exception:  # of any class: torch compares with assertions
            return None


def _saved(built: Any) -> bytes | None:
    """Returns a compiled function as bytes; None if torch cannot write this one."""
    with tempfile.TemporaryDirectory(prefix="layerzero-") as folder:
        path = pathlib.Path(folder, "artifact")
        try:
            built.save(path=str(path), format="binary")
            return path.read_bytes()
        except Exception:
            return None
