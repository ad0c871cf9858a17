"""`python -m layerzero.integrations.sglang.launch_server ...` is `python -m sglang.launch_server ...` with LayerZero's plugin,
also where LayerZero is a folder on the Python path: SGLang finds plugins by the metadata of installed distributions.

Its processes are spawned and import SGLang themselves, so the entry point is put on the Python path.
"""

import contextlib
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import layerzero
from layerzero.host import optional

GROUP = "sglang.srt.plugins"


def write_entry_point(folder: Path) -> Path:
    """Writes the metadata of a distribution with the entry point alone; returns the folder, to be put on the Python path."""
    info = folder / "layerzero_sglang_plugin-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: layerzero-sglang-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nlayerzero = layerzero.integrations.sglang:register\n")
    return folder


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(one.name == "layerzero" for one in entry_points(group=GROUP))


@contextlib.contextmanager
def entry_point() -> Iterator[None]:
    """While inside, this process and those that it starts find the plugin, also where no distribution is installed."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        if not _is_installed():
            paths = [str(write_entry_point(Path(folder))), str(Path(layerzero.__file__).parents[1])]
            sys.path += paths
            os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [before])])
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("PYTHONPATH", None)
            else:
                os.environ["PYTHONPATH"] = before


def main() -> None:
    optional.need("sglang", what="layerzero.integrations.sglang.launch_server")
    with entry_point():
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
