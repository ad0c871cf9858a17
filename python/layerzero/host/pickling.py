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
    kind = type(next(iter(operations.values())).__self__)
    of_others = copyreg.dispatch_table.get(kind)

    def reduced(capsule: Any) -> Any:
        if id(capsule) in capsules:
            return importlib.import_module, ("layerzero",)
        if of_others is not None:
            return of_others(capsule)
        raise TypeError(f"cannot pickle {type(capsule).__name__!r} object")

    copyreg.pickle(kind, reduced)
