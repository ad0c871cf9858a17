"""The recipe "Add a library" of CONTRIBUTING.md, as it is written: one new folder, and the library serves calls."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import layerzero

ROOT = Path(__file__).resolve().parents[3]
CALL = """
import layerzero as lz, torch
x, weight = torch.randn(4, 8), torch.randn(8)
torch.testing.assert_close(lz.rms_norm(x, weight, kernel="mine.rms_norm"), lz.rms_norm(x, weight))
ok, reasons = lz.validate("mine.rms_norm", x.double(), weight.double())
assert not ok and reasons[0].code == "DTYPE_UNSUPPORTED", reasons
"""


def test_a_library_is_one_new_folder(tmp_path):
    recipe = (ROOT / "CONTRIBUTING.md").read_text().split("## Add a library\n")[1].split("\n## ")[0]
    (descriptor,), (adapters,) = (re.findall(rf"```{kind}\n(.*?)```", recipe, re.S) for kind in ("json", "python"))
    package = tmp_path / "layerzero"
    package.mkdir()
    for part in Path(layerzero.__file__).parent.iterdir():
        if part.name != "backends":
            (package / part.name).symlink_to(part.resolve())
    shutil.copytree(Path(layerzero.__file__).parent / "backends", package / "backends")
    folder = package / "backends/mine"
    folder.mkdir()
    for name, text in (("__init__.py", ""), ("capabilities.json", descriptor), ("adapters.py", adapters)):
        (folder / name).write_text(text)

    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
