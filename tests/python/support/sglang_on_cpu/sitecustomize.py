"""What SGLang imports on a CPU but never calls there, for processes with this folder on the Python path.

Triton is what SGLang itself puts in its place on macOS; the fake kernels of torchvision's operators, which are not built
for this torch, are left out. sgl_kernel is in its own folder here. SGLang itself stays as it is.
"""

import importlib
import importlib.util
import sys
import types
from importlib.machinery import PathFinder


class BeforeSGLang:
    def find_spec(self, name, path=None, target=None):
        if name != "sglang":
            return None
        sys.meta_path.remove(self)
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.submodule_search_locations and importlib.util.find_spec("triton") is None:
            stub_triton(f"{list(found.submodule_search_locations)[0]}/_platform_stubs.py")
        return found


def stub_triton(file):
    importlib.import_module("torch._inductor.runtime.triton_compat")  # finds no Triton, and remembers that
    importlib.import_module("torch.utils._triton").has_triton_package()
    spec = importlib.util.spec_from_file_location("sglang_platform_stubs", file)
    theirs = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    sys.meta_path.insert(0, theirs._TritonFinder())
    triton, language, jit = (theirs._make_mock(f"triton{name}") for name in ("", ".language", ".runtime.jit"))
    triton.__version__ = "3.0.0"
    triton.cdiv, triton.next_power_of_2, triton.Config = theirs._cdiv, theirs._next_power_of_2, theirs._Config
    triton.language, triton.runtime = language, theirs._make_mock("triton.runtime")
    language.constexpr = type("constexpr", (), {"__init__": lambda self, value=None: setattr(self, "value", value)})
    triton.runtime.jit, jit.JITFunction = jit, type("JITFunction", (), {})


sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
sys.meta_path.insert(0, BeforeSGLang())
