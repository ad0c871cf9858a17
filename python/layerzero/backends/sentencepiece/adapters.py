"""Kernels of sentencepiece: layerzero.tokenizers.kernels for calls with tensors."""


def encode(*arguments):
    from layerzero.tokenizers import kernels

    return kernels.encode("sentencepiece", *arguments)


def decode(*arguments):
    from layerzero.tokenizers import kernels

    return kernels.decode("sentencepiece", *arguments)


def probe():
    import sentencepiece

    if not hasattr(sentencepiece.SentencePieceProcessor, "encode"):
        raise RuntimeError("SentencePieceProcessor has no encode")
