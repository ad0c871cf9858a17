"""The file of libraries whose import passed, where the clock is set back."""

from types import SimpleNamespace

from layerzero.isolation import trial


def test_a_clock_that_was_set_back_does_not_drop_what_is_new(tmp_path, monkeypatch):
    file = trial._File()
    file._path = tmp_path / trial.FILE
    monkeypatch.setattr(trial, "MOST", 3)
    clock = [2000.0]
    monkeypatch.setattr(trial, "time", SimpleNamespace(time=lambda: clock[0]))
    for key in ("a", "b", "c"):
        file.add(key)
        clock[0] += 1
    clock[0] = 1000.0
    for key in ("d", "e"):
        file.add(key)
        clock[0] += 1
    assert {"d", "e"} <= set(file.read()) and len(file.read()) == 3
    file.add("d")
    assert file.read()["d"] == 1002.0
