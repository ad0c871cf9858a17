"""SGLang's kernels, of which there is no CPU build to install: names to import, errors to call."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is a substitute")

    return missing
