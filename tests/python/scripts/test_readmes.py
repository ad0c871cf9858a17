"""Each large folder has a README, and the tables of READMEs name files that exist."""

import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (".cpp", ".cu", ".h", ".py", ".sh")
LARGE = 9  # source files in the folder itself
# Flat folders of one kind of file each: their parent's README describes them.
FLAT = re.compile(r"ops/|tests/|kernels/.*/|python/layerzero/(backends/torch|bench|cli|models|torch)$|python/layerzero$|src/core$|src/verify$")  # fmt: skip
READMES = sorted(p for top in ("bindings", "kernels", "ops", "python", "scripts", "src", "tests") for p in (ROOT / top).rglob("README.md"))  # fmt: skip


def test_large_folders_have_a_readme():
    tops = ("bindings", "kernels", "ops", "python", "scripts", "src", "tests")
    paths = itertools.chain(*((ROOT / top).rglob("*") for top in tops))
    folders = [p.parent for p in paths if p.suffix in SOURCES]
    for folder in set(folders):
        name = folder.relative_to(ROOT).as_posix()
        if folders.count(folder) >= LARGE and not FLAT.match(name):
            assert (folder / "README.md").is_file(), name


def named(folder: Path, name: str) -> bool:
    if any((place / name).exists() for place in (folder, ROOT)):
        return True
    return any(itertools.chain(folder.glob(name), folder.glob(f"{name}.*"), folder.glob(f"{name}_*")))


@pytest.mark.parametrize("readme", READMES, ids=lambda p: p.parent.relative_to(ROOT).as_posix())
def test_tables_name_files_that_exist(readme):
    folder = readme.parent / "layerzero" if readme.parent == ROOT / "python" else readme.parent
    column = None
    for line in readme.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        heads = [i for i, cell in enumerate(cells) if cell in ("file", "files", "folder", "part")]
        column = heads[0] if heads else column if cells else None
        if column is not None:
            for name in re.findall(r"`([\w./*]+)`", cells[column]):
                assert named(folder, name), f"{readme.relative_to(ROOT)}: {name}"
