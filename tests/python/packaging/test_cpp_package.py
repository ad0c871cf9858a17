"""cmake --install gives a C++ package that find_package finds and a program uses without Python or torch."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / os.environ.get("PRESET", "release")


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not (BUILD / "lib/liblayerzero.so").exists():
        pytest.skip(f"{BUILD} is not built; type: make build")
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def test_a_project_builds_and_runs_against_the_installed_package(prefix, tmp_path):
    run("cmake", "-G", "Ninja", "-S", ROOT / "examples/cpp", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    assert "attention 3.5000" in run(tmp_path / "example")
    loaded = run("ldd", tmp_path / "example")
    assert "liblayerzero.so" in loaded
    assert not any(name in loaded for name in ("python", "torch", "cuda"))


def blocks(page: str, language: str) -> list[str]:
    """Fenced code of a page of docs/guide."""
    text = (ROOT / "docs/guide" / page).read_text()
    return [part.split("```")[0] for part in text.split(f"```{language}\n")[1:]]


def test_the_guide_s_program_compiles_and_runs(prefix, tmp_path):
    program = next(block for block in blocks("cpp.md", "cpp") if "int main" in block)
    (tmp_path / "main.cpp").write_text(program)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(Guide LANGUAGES CXX)\nset(CMAKE_CXX_STANDARD 20)\n"
        "add_executable(program main.cpp)\n" + blocks("cpp.md", "cmake")[0]
    )
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert "rms_norm 2.0000" in run(tmp_path / "build/program")


def test_the_guide_s_program_compiles_with_pkg_config(prefix, tmp_path):
    """Also where the package was moved to after its installation."""
    if not shutil.which("pkg-config"):
        pytest.skip("pkg-config is not installed")
    moved = tmp_path / "moved"
    shutil.copytree(prefix, moved, symlinks=True)
    (tmp_path / "main.cpp").write_text(next(block for block in blocks("cpp.md", "cpp") if "int main" in block))
    environment = os.environ | {"PKG_CONFIG_PATH": str(moved / "lib/pkgconfig")}
    command = ["pkg-config", "--cflags", "--libs", "layerzero >= 0.1"]
    flags = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert flags[0].startswith("-I") and str(Path(flags[0][2:]).resolve()) == str(moved / "include")
    run("c++", "-std=c++20", tmp_path / "main.cpp", *flags, f"-Wl,-rpath,{moved}/lib", "-o", tmp_path / "program")
    assert "rms_norm 2.0000" in run(tmp_path / "program")


def test_the_guide_s_plugin_builds_against_the_package_and_loads(prefix, tmp_path):
    run("cmake", "-G", "Ninja", "-S", ROOT / "examples/plugin", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    (tmp_path / "main.cpp").write_text(
        "#include <layerzero/layerzero.h>\n#include <cstdio>\n"
        "int main(int, char** argv) {\n"
        "  auto api = layerzero::Api::Get();\n"
        "  layerzero::Status status = api->LoadPlugin(argv[1], argv[2]);\n"
        '  std::printf("%s\\n", status.text().c_str());\n'
        "}\n"
    )
    library = f"-L{prefix}/lib"
    run("c++", "-std=c++20", tmp_path / "main.cpp", f"-I{prefix}/include", library, "-llayerzero",
        f"-Wl,-rpath,{prefix}/lib", "-o", tmp_path / "load")  # fmt: skip
    rules = ROOT / "examples/plugin/capabilities.json"
    assert run(tmp_path / "load", tmp_path / "libexample_kernels.so", rules) == "ok\n"
    assert "a readable library" in run(tmp_path / "load", tmp_path / "missing.so", rules)


def test_only_the_public_headers_are_installed(prefix):
    headers = {p.relative_to(prefix / "include").as_posix() for p in (prefix / "include").rglob("*") if p.is_file()}
    assert headers == {f"layerzero/{p.name}" for p in (ROOT / "include/layerzero").iterdir()}


def test_the_wheel_component_brings_what_a_plain_system_lacks(tmp_path):
    if not (BUILD / "lib/liblayerzero.so").exists():
        pytest.skip(f"{BUILD} is not built; type: make build")
    run("cmake", "--install", BUILD, "--prefix", tmp_path, "--component", "python")
    package = tmp_path / "layerzero"
    needed = run("objdump", "-p", package / "liblayerzero.so")
    wanted = {line.split()[1] for line in needed.splitlines() if line.strip().startswith("NEEDED")}
    own = {p.name for p in package.glob("*.so*")}
    plain = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"}
    assert wanted - own <= plain
    assert {p.relative_to(package / "_reference").as_posix() for p in package.glob("_reference/norm/rms_ref.py")}
