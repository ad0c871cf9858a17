"""Models of pipelines that are moved after they were kernelized (`pipe.to("cuda")`): their parts are chosen and compared again."""

from collections.abc import Callable
from typing import Any

from layerzero.integrations import kernelizing

_APPLY = "_apply"  # by which a module is moved or gets another dtype


def follow(model: Any, kernelize: Callable[[Any], None]) -> bool:
    """From here on calls `kernelize(model)` again after each move; returns whether the model is on a device yet."""
    from layerzero.integrations import modules

    if _APPLY not in vars(model):
        model.__dict__[_APPLY] = modules.Bound(_apply, model, kernelize)
    modules.watch_copies(model)
    return not _on_meta(_places(model))


def forget(model: Any) -> None:
    """Undoes `follow` for a model, or for the models of a pipeline."""
    from layerzero.integrations import modules

    for part in [model] if hasattr(model, "modules") else model.components.values():
        if getattr(getattr(part, "__dict__", {}).get(_APPLY), "func", None) is _apply:
            del part.__dict__[_APPLY]
            modules.forget_copies(part)


def _places(model: Any) -> set[tuple[Any, Any]]:
    return {(one.device, one.dtype) for tensors in (model.parameters(), model.buffers()) for one in tensors}


def _on_meta(places: set[tuple[Any, Any]]) -> bool:
    return any(device.type == "meta" for device, _ in places)


def _apply(self: Any, kernelize: Callable[[Any], None], function: Any, recurse: bool = True) -> Any:
    before = _places(self)
    type(self)._apply(self, function, recurse)
    # Hooks of Accelerate move a model before and after each call: it keeps what it has, which is right on every device.
    if _places(self) != before and "_hf_hook" not in vars(self):
        if not (kernelizing.undo(self) or _on_meta(before)):
            forget(self)  # who undid it wants it to stay so
        elif follow(self, kernelize):
            kernelize(self)
    return self
