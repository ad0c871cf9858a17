"""The generated half of ARCHITECTURE.md: folders with what they are and which others they include, read from the tree."""

import ast
import re
from pathlib import Path

from findings import includes, source_files

BEGIN, END = "<!-- begin: scripts/architecture.py -->", "<!-- end -->"
TOPS = ("include/layerzero", "ops", "kernels", "bindings/python", "bindings/torch")


def text_of(root: Path) -> str:
    """Returns ARCHITECTURE.md with its generated part up to date."""
    page = (root / "ARCHITECTURE.md").read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return "\n".join([head + BEGIN, *_engine(root), "", *_python(root), END]) + tail


def engine_uses(root: Path) -> dict[str, set[str]]:
    """Maps each folder of C++ to those that its files include."""
    folders = [p.relative_to(root).as_posix() for p in (root / "src").iterdir() if p.is_dir()] + list(TOPS)
    return {folder: _included(root, folder, folders) for folder in folders}


def python_uses(root: Path) -> dict[str, set[str]]:
    """Maps each part of the Python package to those that it imports when it is imported."""
    names = _parts(root)
    return {name: _imported(path, set(names)) - {name} for name, path in names.items()}


def in_order(uses: dict[str, set[str]]) -> list[str]:
    """Returns the names so that each comes after those that it uses; in a circle that is impossible for one of them."""
    left, order = sorted(uses), []
    while left:
        ready = [name for name in left if not uses[name] & set(left) - {name}]
        order.append(ready[0] if ready else min(left, key=lambda name: (len(uses[name] & set(left)), name)))
        left.remove(order[-1])
    return order


def _engine(root: Path) -> list[str]:
    uses = engine_uses(root)
    rows = [f"| `{one}` | {_sentence(root, one)} | {_list(uses[one], uses)} |" for one in in_order(uses)]
    return ["| folder | what | includes |", "|---|---|---|", *rows]


def _included(root: Path, folder: str, folders: list[str]) -> set[str]:
    found = set()
    for path in source_files(root, [folder], (".h", ".cpp", ".cu", ".inc")):
        for _, name in includes(path.read_text()):
            top = name.partition("/")[0]
            found |= {f for f in folders if f in (f"src/{top}", top, f"include/{top}", "/".join(name.split("/")[:2]))}
    return found - {folder}


def _python(root: Path) -> list[str]:
    uses, names = python_uses(root), _parts(root)
    rows = [f"| `{name}` | {_docstring(names[name])} | {_list(uses[name], uses)} |" for name in in_order(uses)]
    return ["| part of `layerzero` | what | imports at its own import |", "|---|---|---|", *rows]


def _parts(root: Path) -> dict[str, Path]:
    parts = [p for p in (root / "python/layerzero").iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    return {p.stem: p for p in parts if p.stem not in ("__init__", "__main__")}


def _imported(part: Path, names: set[str]) -> set[str]:
    found: set[str] = set()
    for path in [part] if part.suffix == ".py" else sorted(part.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "layerzero":
                inner = str(node.module).split(".")[1:2]
                found |= set(inner or [alias.name for alias in node.names]) & names
    return found


def _list(names: set[str], uses: dict[str, set[str]]) -> str:
    """Lists direct dependencies without those that another one of them has too."""
    order = in_order(uses)
    needed = [name for name in names if not any(name in uses[other] for other in names)]
    return ", ".join(f"`{name}`" for name in sorted(needed, key=order.index))


def _sentence(root: Path, folder: str) -> str:
    """Returns what a README says of a folder: its row in the table of src/README.md, or its own first sentence."""
    name = folder.removeprefix("src/")
    row = re.search(rf"^\| \[?`{name}`[^|]*\| (.*) \|$", (root / "src/README.md").read_text(), re.MULTILINE)
    if row and folder.startswith("src/"):
        return row[1]
    text = (root / folder / "README.md").read_text().split("\n\n")[1]
    return re.sub(r"\s+", " ", text).partition(". ")[0].rstrip(".")


def _docstring(part: Path) -> str:
    path = part if part.suffix == ".py" else part / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0]).partition(". ")[0].rstrip(".").replace("|", "\\|")
