"""Operations are pickled by their name: `pickle.loads(pickle.dumps(lz.rms_norm)) is lz.rms_norm`, in another process too.

Python pickles a builtin as an attribute of its object, here a capsule of the binding. Capsules of operations are pickled as
this package; others stay what they are, not picklable.
"""

import copyreg
import importlib
from collections.abc import Mapping
from typing import Any


def install(operations: Mapping[str, Any]) -> None:
    """Registers how the capsules of operations, by name, are pickled. Called once by `import layerzero`."""
    capsules = {id(operation.__self__) for operation in operations.values()}

    def reduced(capsule: Any) -> tuple[Any, tuple[str]]:
        if id(capsule) not in capsules:
            raise TypeError(f"cannot pickle {type(capsule).__name__!r} object")
        return importlib.import_module, ("layerzero",)

    copyreg.pickle(type(next(iter(operations.values())).__self__), reduced)
