"""Kernels of tokenizers: layerzero.tokenizers.kernels for calls with tensors."""


def encode(*arguments):
    from layerzero.tokenizers import kernels

    return kernels.encode("tokenizers", *arguments)


def decode(*arguments):
    from layerzero.tokenizers import kernels

    return kernels.decode("tokenizers", *arguments)


def probe():
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    if tokenizer.encode("aba").ids != [2, 0]:
        raise RuntimeError("aba has other ids than ab, a")
