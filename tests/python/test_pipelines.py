"""LAYERZERO_PIPELINES and the policy's `pipelines`: what changes in a process that imports diffusers later, over a substitute for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

SUBSTITUTE = """
class DiffusionPipeline:
    def register_modules(self, **modules):
        self.modules = modules
"""
PROGRAM = """
import sys
import torch
import layerzero as lz
from layerzero.host import pipelines

class Model(torch.nn.Module):  # as a class of diffusers
    __module__ = "diffusers.models"

calls = []
assert "diffusers" not in sys.modules
from layerzero.integrations import kernelizing
kernelizing._integration = lambda model: type(
    "Integration", (), {"kernelize": staticmethod(lambda model, weights, quiet: calls.append(type(model).__name__))}
)
import diffusers.pipelines.pipeline_utils as utils
utils.DiffusionPipeline().register_modules(unet=Model(), scheduler=object(), both=("diffusers", Model()))
print(calls)
lz.configure(pipelines=True)
utils.DiffusionPipeline().register_modules(unet=Model())
print(calls)
lz.configure(pipelines=False)
utils.DiffusionPipeline().register_modules(unet=Model())
print(calls)
"""


@pytest.mark.parametrize(("value", "first"), [("1", ["Model"] * 2), ("0", []), (None, [])])
def test_the_variable_and_the_key(tmp_path, value, first):  # proves: pipelines
    folder = tmp_path / "diffusers" / "pipelines"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "pipeline_utils.py").write_text(SUBSTITUTE)
    path = os.pathsep.join((str(tmp_path), str(Path(lz.__file__).parents[1])))
    environment = {name: text for name, text in os.environ.items() if name != "LAYERZERO_PIPELINES"} | {
        "PYTHONPATH": path
    }
    if value is not None:
        environment["LAYERZERO_PIPELINES"] = value
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    later = [*first, "Model"]
    assert done.stdout.splitlines() == [str(first), str(later), str(later)]
