"""What the engine calls when a call would have got a kernel that is not compiled: layerzero.jit, imported on first use."""


def wanted(operation: str, kernel_id: str, kind: tuple[int, ...], call: str) -> None:
    from layerzero.jit import library

    library.wanted(operation, kernel_id, kind, call)
