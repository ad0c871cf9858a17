"""What mkdocs does besides Markdown: the first page is README.md, the Python reference is made from the public names, the
navigation is the guide's own order, and links to files outside docs/ show those files."""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
_LANGUAGES = {".json": "json", ".yaml": "yaml", ".py": "python", ".cpp": "cpp", ".h": "cpp"}
_MOST = 20_000  # characters of a file that is shown


def _source() -> tuple[ast.Module, list[ast.ImportFrom]]:
    """Returns the package's own source, and what it imports by `from`."""
    tree = ast.parse((ROOT / "python/layerzero/__init__.py").read_text(encoding="utf-8"))
    return tree, [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def public_names() -> list[str]:
    """Returns the names of `layerzero` that are neither operations nor submodules, as its source imports them."""
    tree, imports = _source()
    imports = [node for node in imports if node.module != "layerzero"]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    names |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return sorted(
        n
        for n in names
        if not n.startswith("_") and n not in ("Any", "NamedTuple", "*", "slow_call", "as_not_installed")
    )


def public_modules() -> list[str]:
    """Returns the submodules that `layerzero` imports as names of its own."""
    imports = [node for node in _source()[1] if node.module == "layerzero"]
    return sorted(alias.name for node in imports for alias in node.names if alias.asname == alias.name)


def _reference() -> str:
    """The page of functions, of classes, of errors, and of modules."""
    names = public_names()
    errors = [n for n in names if n.endswith(("Error", "Warning"))]
    classes = [n for n in names if n[0].isupper() and n not in errors]
    functions = [n for n in names if n[0].islower()]
    parts = [
        "# Python reference\n\nOperations are functions of `layerzero` too: each has [its own page](operations/README.md)."
    ]
    for title, members in (
        ("Functions", functions),
        ("Classes", classes),
        ("Errors", errors),
        ("Modules", public_modules()),
    ):
        parts.append(f"## {title}")
        parts += [f"::: layerzero.{name}" for name in members]
    return "\n\n".join(parts) + "\n"


def _operations() -> str:
    """The list of operations, each with the first sentence of its page."""
    lines = ["# Operations\n"]
    for path in sorted((ROOT / "docs/operations").glob("*.md")):
        text = path.read_text(encoding="utf-8").split("\n\n")
        lines.append(f"* [{path.stem}]({path.name}): {text[1]}")
    return "\n".join(lines) + "\n"


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference.md", content=_reference()))
    files.append(File.generated(config, "operations/README.md", content=_operations()))
    linked = {path for file in files.documentation_pages() for path in _repository_paths(file)}
    for path in sorted(linked):
        files.append(File.generated(config, _source_uri(path), content=_source_page(ROOT / path)))
    return files


def on_config(config: Any) -> Any:
    guide = (ROOT / "docs/guide/README.md").read_text(encoding="utf-8")
    pages = dict.fromkeys(re.findall(r"\]\(([a-z0-9-]+\.md)\)", guide))
    operations = sorted(f"operations/{path.name}" for path in (ROOT / "docs/operations").glob("*.md"))
    decisions = sorted(f"design/{path.name}" for path in (ROOT / "docs/design").glob("[0-9]*.md"))
    config.nav = [
        {"LayerZero": "index.md"},
        {"Guide": ["guide/README.md", *(f"guide/{page}" for page in pages)]},
        {"Reference": ["reference.md", "reasons.md", "support-matrix.md", "glossary.md", "roadmap.md"]},
        {"Operations": ["operations/README.md", *operations]},
        {"Decisions": ["design/README.md", *decisions]},
    ]
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links to files of the repository outside docs/ into links to the pages that show them."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        path = _repository_path(page.file, match[2])
        if path is None:
            return match[0]
        if path.startswith("docs/"):
            return f"]({posixpath.relpath(path.removeprefix('docs/'), folder or '.')}{match[3] or ''})"
        return f"]({posixpath.relpath(_source_uri(path), folder or '.')})"

    if folder == "operations":
        markdown = markdown.replace("][", "]\\[")  # of two indices, which are no link
    return _LINK.sub(shown, markdown)


def _repository_path(file: File, target: str) -> str | None:
    """Returns the path in the repository that a link names; None for addresses and broken links, which mkdocs reports."""
    if "://" in target or target.startswith("mailto:"):
        return None
    of_readme = file.src_uri == "index.md"
    folder = "." if of_readme else posixpath.join("docs", posixpath.dirname(file.src_uri))
    path = posixpath.normpath(posixpath.join(folder, target))
    if path.startswith("docs/") and (ROOT / path).is_dir():
        return f"{path}/README.md"
    return path if (ROOT / path).exists() and not path.startswith("..") else None


def _repository_paths(file: File) -> Iterator[str]:
    for match in _LINK.finditer(file.content_string):
        path = _repository_path(file, match[2])
        if path is not None and not path.startswith("docs/"):
            yield path


def _source_uri(path: str) -> str:
    return f"files/{path.replace('/', '-')}.md"


def _source_page(source: Path) -> str:
    """Returns the page that shows a file, or lists a folder."""
    if source.is_dir():
        body = "\n".join(f"* `{child.name}`" for child in sorted(source.iterdir()) if not child.name.startswith("."))
    elif source.suffix == ".md":
        body = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", source.read_text(encoding="utf-8"))
    else:
        text = source.read_text(encoding="utf-8")
        cut = "\n..." if len(text) > _MOST else ""
        body = f"```{_LANGUAGES.get(source.suffix, '')}\n{text[:_MOST]}{cut}\n```"
    return f"# {source.relative_to(ROOT)}\n\n{body}\n"
