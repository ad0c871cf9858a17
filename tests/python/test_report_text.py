"""What print, a notebook and a bare expression show of reports: short and readable, the same text as the command line."""

import json
import re

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

X, W = torch.ones(4, 8), torch.ones(8)
REPORTS = {
    "doctor": lz.doctor,
    "explain": lambda: lz.explain("rms_norm", X, W),
    "explain, no kernel": lambda: lz.explain("rms_norm", X, W, kernel="cuda.norm.rms"),
    "which": lambda: lz.which("rms_norm", X, W),
    "list_kernels": lz.list_kernels,
    "a kernel": lambda: lz.list_kernels("norm.rms")[0],
    "a device": lambda: lz.doctor().devices.devices[0],
    "policy": lambda: lz.policy(strict_mode=True, locks={"norm.rms": "hwy.norm.rms"}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_bare_expression_shows_one_short_line(name):
    text = repr(REPORTS[name]())
    assert "\n" not in text and len(text) <= 200
    assert " object at 0x" not in text


@pytest.mark.parametrize("name", REPORTS)
def test_print_shows_no_line_of_json(name):
    text = str(REPORTS[name]())
    assert " object at 0x" not in text
    for line in text.splitlines():
        assert not re.match(r"\s*[\[{].{200}", line), line[:80]


@pytest.mark.parametrize("name", [n for n in REPORTS if n not in ("policy",)])
def test_a_notebook_shows_html_without_markup_of_the_data(name):
    html = REPORTS[name]()._repr_html_()
    assert html.startswith(("<table>", "<pre>")) and "<class" not in html


def test_the_chosen_kernel_is_listed_first_whatever_its_score(capsys):
    from layerzero.cli.explain import _print

    report = lz.explain("rms_norm", X, W)
    best = report.kernel_id
    report._data["kernel_id"] = other = next(
        c.kernel_id for c in report.candidates if c.admissible and not c.reference and c.kernel_id != best
    )
    assert [row[:2] for row in report.rows()[:2]] == [("->", other), ("", best)]
    _print(report, False)
    shown = capsys.readouterr().out.partition("score: ")[0].partition("\n")[2]
    assert shown.index(other) < shown.index(best)


def test_html_is_escaped():
    from layerzero.inspection.text import html_table, html_text

    assert "<b>" not in html_table(["<b>"], [["<b>"]], "<b>") + html_text("<b>")


def test_print_of_doctor_and_of_a_choice_is_what_the_command_line_prints(capsys):
    from layerzero.cli import run

    def printed(*arguments):
        assert run(list(arguments)) == 0
        return capsys.readouterr().out

    assert re.sub(r"\d", "", printed("doctor")) == re.sub(r"\d", "", f"{lz.doctor()}\n")
    assert (
        printed("which", "rms_norm", "--input", "f32[4,8]", "--weight", "f32[8]") == f"{lz.which('rms_norm', X, W)}\n"
    )


def test_a_choice_is_still_the_plain_dictionary():
    choice = lz.which("rms_norm", X, W)
    assert choice == {"kernel_id": choice.kernel_id, "score": choice.score} and json.loads(json.dumps(choice)) == choice
    with pytest.raises(AttributeError, match="kernel_id, score"):
        choice.nothing  # noqa: B018


def test_the_table_of_kernels_has_each_id_whole_and_once():
    kernels = lz.list_kernels()
    lines = str(kernels).splitlines()
    for kernel in kernels:
        assert sum(kernel.kernel_id in line.split() for line in lines) == 1, kernel.kernel_id
