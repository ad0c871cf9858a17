"""Runs an action right after the first import of a module by other code."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        others = (f for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            run(module)
            # An error of the action must not break the import.
            try:
                self.action(module)
            except Exception as error:
                import logging

                logging.getLogger("layerzero").warning("after the import of %s: %s", name, error)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Calls `action` with the module once, after its first import."""
    sys.meta_path.insert(0, _AfterImport(name, action))


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Calls `action` with the module: now if it is imported, else after its first import; once, however often it is asked for."""
    if (module := sys.modules.get(name)) is not None:
        action(module)
    elif not any(isinstance(f, _AfterImport) and (f.name, f.action) == (name, action) for f in sys.meta_path):
        after_import(name, action)
