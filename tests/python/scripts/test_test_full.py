"""make test-full goes on where it stopped, and starts afresh when a file has changed."""

import json
import subprocess

import pytest
import test_full


@pytest.fixture
def repository(tmp_path, monkeypatch):
    def git(*args):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *args], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / ".gitignore").write_text("/build\n/ran\n")
    (tmp_path / "source").write_text("1")
    git("add", "--all")
    git("commit", "-qm", "first")
    monkeypatch.setattr(test_full, "ROOT", tmp_path)
    monkeypatch.setattr(test_full, "LOGS", tmp_path / "build/test-full")
    monkeypatch.setattr(
        test_full,
        "STAGES",
        {
            "one": test_full.Stage("echo one >> ran; echo '3 passed, 0 failed, 1 skipped'", ("*.py",)),
            "two": test_full.Stage(
                "echo two >> ran; ! grep -q broken source; rc=$?; echo '2 passed, 0 failed, 0 skipped'; exit $rc"
            ),
        },
    )
    return tmp_path


def run(monkeypatch, *stages) -> int:
    monkeypatch.setattr("sys.argv", ["test_full.py", *stages])
    return test_full.main()


def test_goes_on_where_it_stopped(repository, monkeypatch, capsys):
    assert run(monkeypatch, "one") == 0
    assert run(monkeypatch) == 0
    assert (repository / "ran").read_text().split() == ["one", "two"]
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 0 failed, 1 skipped"

    (repository / "source").write_text("broken")
    assert run(monkeypatch) == 1
    assert (repository / "ran").read_text().split() == ["one", "two", "one", "two"]

    assert run(monkeypatch) == 1  # what failed runs again, what passed does not
    assert (repository / "ran").read_text().split() == ["one", "two", "one", "two", "two"]


def test_leaves_result_and_commit(repository, monkeypatch):
    assert run(monkeypatch) == 0
    (result,) = (repository / "bench/results").glob("test-full-*.json")
    summary = json.loads(result.read_text())
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True)
    assert [s["stage"] for s in summary["stages"]] == ["one", "two"]
    assert all(s["commit"] == head.stdout.strip() and s["working_tree"] == "clean" for s in summary["stages"])
    assert run(monkeypatch) == 0  # the result itself is no change
    assert (repository / "ran").read_text().split() == ["one", "two"]


def test_some_stages_leave_their_results_and_name_the_others(repository, monkeypatch):
    def summary():
        (result,) = (repository / "bench/results").glob("test-full-*.json")
        return json.loads(result.read_text())

    assert run(monkeypatch, "two") == 0
    assert summary()["not_run"] == ["one"] and not summary()["passed"]
    assert run(monkeypatch, "one") == 0
    assert summary()["not_run"] == [] and summary()["passed"]
    (repository / "source").write_text("2")  # what passed on other files does not count
    assert run(monkeypatch, "two") == 0
    assert summary()["not_run"] == ["one"] and not summary()["passed"]
    one, two = summary()["stages"]  # but is kept, with the files it ran on
    assert one["working_tree"] == "clean" and two["working_tree"] == "changed since the commit"
    assert one["tree"] != two["tree"]


def test_a_stage_whose_files_changed_under_it_has_not_passed(repository, monkeypatch):
    monkeypatch.setitem(test_full.STAGES, "one", test_full.Stage("echo 2 >> source"))
    assert run(monkeypatch, "one") == 1
    (result,) = (repository / "bench/results").glob("test-full-*.json")
    (one,) = json.loads(result.read_text())["stages"]
    assert not one["passed"] and "changed" in one["why"]


def test_a_stage_passes_over_changes_in_what_it_ignores(repository, monkeypatch):
    assert run(monkeypatch) == 0
    (repository / "new.py").write_text("")
    assert run(monkeypatch) == 0
    assert (repository / "ran").read_text().split() == ["one", "two", "two"]
    (result,) = (repository / "bench/results").glob("test-full-*.json")
    assert json.loads(result.read_text())["passed"]


def test_a_stage_with_another_command_runs_again(repository, monkeypatch):
    assert run(monkeypatch) == 0
    monkeypatch.setitem(test_full.STAGES, "one", test_full.Stage("echo again >> ran"))
    assert run(monkeypatch) == 0
    assert (repository / "ran").read_text().split() == ["one", "two", "again"]


def test_a_stage_that_is_no_more_is_passed_over(repository, monkeypatch):
    assert run(monkeypatch) == 0
    monkeypatch.delitem(test_full.STAGES, "one")
    (repository / "source").write_text("2")
    assert run(monkeypatch) == 0
    (result,) = (repository / "bench/results").glob("test-full-*.json")
    assert [s["stage"] for s in json.loads(result.read_text())["stages"]] == ["two"]


def test_another_clone_goes_on_from_the_committed_record(repository, monkeypatch):
    assert run(monkeypatch, "one") == 0
    (repository / "ran").unlink()
    for log in (repository / "build/test-full").iterdir():
        log.unlink()
    assert run(monkeypatch) == 0
    assert (repository / "ran").read_text().split() == ["two"]


def test_every_kind_of_test_has_a_stage():
    assert {"format", "lint", "release", "dev", "asan", "tsan", "fuzz", "aarch64", "wheel", "matrix"} <= set(
        test_full.STAGES
    )


def test_an_unknown_stage_is_refused(repository, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "three")
    assert "one, two" in capsys.readouterr().err


def test_names_the_machines_on_which_the_rest_passed(repository, monkeypatch):
    for name, stages in {"first": ("one", "two"), "second": ("one",)}.items():
        monkeypatch.setattr(test_full, "machine", lambda name=name: name)
        assert run(monkeypatch, *stages) == 0
    records = repository / "bench/results"
    second = json.loads((records / "test-full-second.json").read_text())
    assert (second["passed"], second["not_run"]) == (False, ["two"])  # a machine's record is of that machine
    assert second["passed_elsewhere"] == {"two": ["first"]}

    (repository / "source").write_text("2")  # of other files it says nothing
    assert run(monkeypatch, "one") == 0
    assert json.loads((records / "test-full-second.json").read_text())["passed_elsewhere"] == {}
