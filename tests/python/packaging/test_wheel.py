"""The wheel: made, installed in an environment of its own, and the door's tests pass there, on the Python and torch of the CI."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(*command):
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_an_installed_wheel_passes_the_tests_of_the_door():
    """The same compiler and flags as the build's: a compiler cache makes it quick."""
    run("scripts/wheel.sh", "--local")
    wheel = next((ROOT / "build/wheel-local/dist").glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("liblayerzero.so", "_layerzero.abi3.so", "liblayerzero_torch.so", "py.typed"):
        assert f"layerzero/{wanted}" in names
    assert not [n for n in names if "test" in n.lower() or n.endswith((".a", ".cpp"))]
    script = ROOT / "scripts/check_matrix.py"
    print(run(sys.executable, script, "--here", "--wheel", wheel, "--tests", "tests/python/test_door.py"))
