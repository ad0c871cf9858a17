"""The wheel's compiler has another C++ library than the one that builds the tests: the bindings compile with it too."""

import os
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ziglang = pytest.importorskip("ziglang")

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "bindings/python").glob("*.cpp"))


@pytest.fixture(scope="module")
def compile_with_zig(tmp_path_factory):
    """Compiles one source; returns the compiler's messages. Without the headers of the machine's C library."""
    include, python = tmp_path_factory.mktemp("include"), Path(sysconfig.get_path("include"))
    (include / "nlohmann").symlink_to("/usr/include/nlohmann")
    for path in Path("/usr/include").glob(f"*/{python.name}"):  # Debian's Python.h includes from there
        (include / path.parent.name).mkdir()
        (include / path.parent.name / python.name).symlink_to(path)
    zig = [str(Path(ziglang.__file__).parent / "zig"), "c++", "-target", f"{os.uname().machine}-linux-gnu.2.28"]
    folders = [f"-I{ROOT / name}" for name in ("", "src", "include", "build/release/gen")]
    options = ["-c", "-std=c++20", "-DPY_SSIZE_T_CLEAN", "-DPy_LIMITED_API=0x030A0000", *folders]

    def run(source):
        command = [
            *zig,
            *options,
            "-isystem",
            str(include),
            "-isystem",
            str(python),
            "-o",
            str(include / f"{source.stem}.o"),
            str(source),
        ]
        return subprocess.run(command, capture_output=True, text=True).stderr

    return run


def test_the_bindings_compile(compile_with_zig):
    assert len(SOURCES) > 10
    with ThreadPoolExecutor(2) as pool:
        messages = dict(zip(SOURCES, pool.map(compile_with_zig, SOURCES), strict=True))
    assert not {source.name: text[:2000] for source, text in messages.items() if "error:" in text}


def test_a_name_of_another_library_is_found(compile_with_zig, tmp_path):
    """The control: libstdc++ alone has this name."""
    planted = tmp_path / "planted.cpp"
    planted.write_text("#include <cxxabi.h>\nvoid f() { try { f(); } catch (abi::__forced_unwind&) { throw; } }\n")
    assert "no type named '__forced_unwind'" in compile_with_zig(planted)
