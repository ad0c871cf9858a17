"""Kernels of tiktoken: layerzero.tokenizers.kernels for calls with tensors."""


def encode(*arguments):
    from layerzero.tokenizers import kernels

    return kernels.encode("tiktoken", *arguments)


def decode(*arguments):
    from layerzero.tokenizers import kernels

    return kernels.decode("tiktoken", *arguments)


def probe():
    import tiktoken

    encoding = tiktoken.Encoding(
        "probe", pat_str=r".+", mergeable_ranks={b"a": 0, b"b": 1, b"ab": 2}, special_tokens={}
    )
    if encoding.encode("aba") != [2, 0]:
        raise RuntimeError("aba has other ids than ab, a")
