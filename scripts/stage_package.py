"""Makes a build importable: build/<preset>/python/layerzero is python/layerzero plus the built libraries.

Files are links, so edited Python files take effect immediately. .venv points to the staged package, so that `import
layerzero`, `python -m layerzero` and the command `layerzero` work there. The layout is that of the wheel.
"""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Data of the package besides its modules: (folder in the repository, name in the package).
DATA = (("ops", "_reference"), ("schemas", "schemas"), ("bench/ops", "_bench"))
COMMAND = """#!{python}
import sys

from layerzero.__main__ import main

sys.exit(main())
"""


def link(target: Path, name: Path) -> None:
    if name.is_symlink() and name.readlink() == target:
        return
    name.unlink(missing_ok=True)
    name.symlink_to(target)


def stage(preset: str) -> Path:
    build = ROOT / "build" / preset
    package = build / "python" / "layerzero"
    package.mkdir(parents=True, exist_ok=True)
    wanted = {p.name: p for p in (ROOT / "python/layerzero").iterdir() if p.name != "__pycache__"}
    wanted |= {p.name: p for p in sorted((build / "lib").glob("*.so"))}
    wanted |= {name: ROOT / folder for folder, name in DATA if name not in wanted and (ROOT / folder).is_dir()}
    for name, target in wanted.items():
        link(target, package / name)
    for old in package.iterdir():
        if old.is_symlink() and old.name not in wanted:
            old.unlink()
    return package.parent


def point_environment_at(folder: Path) -> None:
    (Path(sysconfig.get_paths()["purelib"]) / "layerzero_build.pth").write_text(f"{folder}\n")
    command = Path(sysconfig.get_paths()["scripts"]) / "layerzero"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)


if __name__ == "__main__":
    point_environment_at(stage(sys.argv[1]))
