"""The documentation's site: built strictly (broken links are errors), complete, searched and shown by a real browser."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / ".venv/docs"
pytestmark = pytest.mark.skipif(not (DOCS / "mkdocs").is_dir(), reason="mkdocs is not installed: make setup")


def build(root, into):
    env = os.environ | {"PYTHONPATH": str(DOCS), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)]
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    into = tmp_path_factory.mktemp("site")
    done = build(ROOT, into)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


def test_every_page_is_there(site):
    for page in (*ROOT.glob("docs/guide/*.md"), *ROOT.glob("docs/operations/*.md"), *ROOT.glob("docs/design/*.md")):
        name = "index" if page.stem == "README" else page.stem
        assert (site / page.parent.name / f"{name}.html").is_file(), page
    guide = (site / "guide/index.html").read_text()
    missing = [
        p.name for p in ROOT.glob("docs/guide/*.md") if p.stem != "README" and f'href="{p.stem}.html' not in guide
    ]
    assert not missing, "pages that docs/guide/README.md does not list"


def test_the_reference_has_every_public_name(site):
    page = (site / "reference.html").read_text()
    names = set(lz.__all__) - set(lz._operations) - {"__version__", "version_info"}
    assert names and not [name for name in names if f'id="layerzero.{name}"' not in page]
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert "Returns where the time of" in text  # of profile's docstring


def test_the_search_finds_an_operation(site):
    index = json.loads((site / "search/search_index.json").read_text())
    assert any(doc["location"] == "operations/rms_norm.html" for doc in index["docs"])
    assert any("QUARANTINED" in doc["text"] for doc in index["docs"])


def test_no_page_asks_another_host(site):
    for page in site.rglob("*.html"):
        sources = re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"?(https?://[^\" >]+)", page.read_text())
        assert not [s for s in sources if "canonical" not in s], page


def test_a_broken_link_is_an_error(tmp_path):
    """The control: a link to no page, and one to no heading."""
    copy = tmp_path / "copy"
    for name in ("docs", "python/layerzero", "scripts"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("mkdocs.yml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    page = copy / "docs/guide/gpu.md"
    for broken in ("[x](no-such-page.md)", "[x](policy.md#no-such-heading)"):
        text = page.read_text()
        page.write_text(text + f"\n{broken}\n")
        done = build(copy, tmp_path / "site")
        assert done.returncode != 0 and "gpu.md" in done.stderr + done.stdout, broken
        page.write_text(text)


def test_a_browser_shows_it(site, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs a browser")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom",
         (site / "guide/policy.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "What LayerZero may choose" in done.stdout.replace("what LayerZero may choose", "What LayerZero may choose")
    assert 'class="md-nav__link' in done.stdout
