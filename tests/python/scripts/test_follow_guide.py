"""Following a guide: what is typed where, and what stops it."""

import sys

import follow_guide
import pytest


@pytest.fixture
def guide(tmp_path):
    """write(page, text ...) into a clone; follow() gives the records."""

    class Guide:
        def write(self, **pages):
            folder = tmp_path / "clone/docs/guide"
            folder.mkdir(parents=True)
            (folder / "README.md").write_text("".join(f"1. [Page]({name}.md)\n" for name in pages))
            for name, text in pages.items():
                (folder / f"{name}.md").write_text(text)
            (tmp_path / "clone/bin").mkdir()
            (tmp_path / "clone/bin/python").symlink_to(sys.executable)

        def follow(self):
            return list(follow_guide.follow(tmp_path / "clone", sys.executable, tmp_path))

    return Guide()


def sh(*lines):
    return "```sh\n" + "\n".join(lines) + "\n```\n"


def py(*lines):
    return "```python\n" + "\n".join(lines) + "\n```\n"


ACTIVATE = sh('export PATH="$PWD/bin:$PATH"  # as activate does')


def test_a_shell_for_all_pages_and_a_program_for_each(guide, capfd):
    guide.write(
        first=ACTIVATE + sh("mkdir sub && cd sub", "export WORD=said") + py("import os", "x = os.environ['WORD']"),
        second=py("assert 'x' not in globals()", "y = 1")
        + sh("basename $PWD >where")
        + py("print(open('where').read(), y)"),
    )
    records = guide.follow()
    assert [record["language"] for record in records] == ["sh", "sh", "python", "python", "sh", "python"]
    assert "sub\n 1\n" in capfd.readouterr().out
    assert all(record["seconds"] >= 0 for record in records)


@pytest.mark.parametrize(
    "block, message",
    [
        (sh("true", "false", "touch never"), "exit code 1, wanted 0: false"),
        (sh("true  # exit code 1"), "exit code 0, wanted 1"),
        (sh("exit 3"), "exit code -1"),
        (py("1 / 0"), "a Python block raised"),
        (py("import sys; sys.exit()"), "a Python block raised"),
        (py("import os; os._exit(0)"), "a Python block raised"),
    ],
)
def test_what_fails_stops_it(guide, block, message, tmp_path):
    guide.write(page=ACTIVATE + block + sh("touch never"))
    with pytest.raises(follow_guide.Failed, match=message):
        guide.follow()
    assert not (tmp_path / "clone/never").exists()


def test_stated_exit_codes_and_standard_input(guide):
    guide.write(page=sh("false  # exit code 1", "cat", "test -n '$PYTHON'"))
    assert len(guide.follow()) == 1


def test_what_is_not_run_says_why(guide):
    guide.write(page="```yaml\nversion: 1\n```\n" + sh("true"))
    first, second = guide.follow()
    assert "policy" in first["skipped"] and "skipped" not in second


def test_every_language_of_the_guide_is_known():
    for page in follow_guide.pages(follow_guide.ROOT):
        for language, _ in follow_guide.blocks(page):
            assert language in {"sh", "python", *follow_guide.NOT_RUN}, page


def test_every_page_is_followed():
    every = set((follow_guide.ROOT / follow_guide.GUIDE).glob("*.md"))
    assert {page.name for page in every} - {page.name for page in follow_guide.pages(follow_guide.ROOT)} == {
        "README.md"
    }
