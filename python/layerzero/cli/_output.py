"""Output of commands: tables for people, JSON with stable keys for programs."""

import contextlib
import json
import logging
import os
import re
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

from layerzero.errors import InvalidRequestError, LayerZeroError, file_error
from layerzero.inspection.text import table, terminal_width

INTERRUPTED = 130  # exit code
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
NoImport = Annotated[
    bool, typer.Option("--no-import", help="import no library: an installed one counts as usable, even if it is broken")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="write only errors to standard error")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="show everything, nothing grouped or left out; on standard error, how long it took"
    ),
]
_silenced = False


def one_of_option(known: Sequence[str], help: str = "") -> Any:
    """Returns an option whose help and completion list its values."""
    text = ", ".join(known[:-1]) + f" or {known[-1]}"
    return typer.Option(help=f"{text}. {help}" if help else text, autocompletion=lambda: list(known))


@contextlib.contextmanager
def manner(quiet: bool, verbose: bool) -> Iterator[None]:
    """Applies --quiet and --verbose to the command that runs inside."""
    global _silenced
    if quiet and verbose:
        raise InvalidRequestError("--quiet", "--quiet or --verbose", "both", "leave one out")
    start, logger = time.perf_counter(), logging.getLogger("layerzero")
    level = logger.level
    with warnings.catch_warnings():
        if quiet:
            _silenced = True
            warnings.simplefilter("ignore")
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            _silenced = False
            logger.setLevel(level)
            if verbose:
                took = time.perf_counter() - start
                imported = "with torch imported" if "torch" in sys.modules else "without importing torch"
                print(f"layerzero: {took:.2f} s, {imported}", file=sys.stderr)


@contextlib.contextmanager
def answers(as_json: bool) -> Iterator[None]:
    """Reports the errors of the command that runs inside, and ends it with their exit code."""
    try:
        yield
    except LayerZeroError as error:
        raise typer.Exit(report_error(error, as_json=as_json)) from error
    except ImportError as error:
        from layerzero.host.optional import as_not_installed

        if missing := as_not_installed(error, "this command"):
            raise typer.Exit(report_error(missing, as_json=as_json)) from error
        raise
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        if as_json:
            print_json({"error": _no_parts("KeyboardInterrupt", "interrupted")})
        raise typer.Exit(INTERRUPTED) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone():
            raise typer.Exit(0) from error
        found = file_error("file", "one that can be read or written", error.filename or "standard output", error)
        raise typer.Exit(report_error(found, as_json=as_json)) from error


def reader_has_gone() -> bool:
    """Writes what was printed; True if nobody reads it any more, as after `layerzero list | head -1`: the rest is dropped."""
    try:
        sys.stdout.flush()
        file = sys.stdout.fileno()
    except BrokenPipeError:
        file = sys.stdout.fileno()
    except (OSError, ValueError):  # a full disk; a stream without a file
        return False
    pipe = select.poll()
    pipe.register(file, 0)
    gone = any(event & select.POLLERR for _, event in pipe.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file)
    return gone


def note(quiet: bool) -> Callable[[str], None]:
    """Returns a function that prints progress lines on standard error, or does nothing if `quiet`."""
    return (lambda text: None) if quiet or _silenced else (lambda text: print(text, file=sys.stderr, flush=True))


def write_now(text: str) -> None:
    """Writes a piece of an answer to standard output without waiting for the end of the line."""
    print(text, end="", flush=True)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def colours() -> bool:
    """True if standard output is a terminal with colors and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], wraps: Sequence[str] = ()) -> None:
    """`wraps`: the columns whose words may wrap."""
    print(table(columns, rows, title, wraps=wraps, width=terminal_width(), colour=colours()))


def size_text(count: int) -> str:
    """Returns 1536 as 1.5 KiB."""
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.4g} {units[0]}"


def read_size(text: str) -> int:
    """Returns the bytes of "1024", "500MiB" or "2 GiB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *(|KiB|MiB|GiB)", text)
    if not match:
        raise InvalidRequestError("size", "bytes or a number with KiB, MiB or GiB", repr(text))
    return int(float(match[1]) * 1024 ** ("", "KiB", "MiB", "GiB").index(match[2]))


def finish(report: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Prints a measurement's report as JSON or with `show`; exits with code 1 if it misses a bar."""
    if as_json:
        print_json(report)
    else:
        show(report)
    raise typer.Exit(INTERRUPTED if "interrupted" in report else 0 if report.get("ok", True) else 1)


@contextlib.contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Shows a progress bar on standard error if that is a terminal; yields the function to call after each step."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=_silenced or not sys.stderr.isatty()) as bars:
        task = bars.add_task(description, total=total)

        def step(*now: Any) -> None:
            """Advances by one step; `now` names the next step or the finished one."""
            text = " ".join([description, *map(str, now)])
            bars.update(task, advance=1, description=text)

        yield step
        bars.update(task, total=total or 1, completed=total or 1)


def _no_parts(kind: str, message: str) -> dict[str, str]:
    return {"type": kind, "message": message, "field": "", "wanted": "", "got": "", "fix": ""}


_PARTS = re.compile(r"(?P<field>[^:]+): wanted (?P<wanted>.+?)(?:, got (?P<got>.+?))?(?:; (?P<fix>.+))?", re.DOTALL)


def parts_of(error: LayerZeroError) -> dict[str, str]:
    """Returns field, wanted, got and fix of an error, from its attributes or parsed from its message."""
    parts = {key: getattr(error, key) for key in ("field", "wanted", "got", "fix")}
    match = None if any(parts.values()) else _PARTS.fullmatch(str(error))
    return {key: value or "" for key, value in match.groupdict().items()} if match else parts


def report_error(error: LayerZeroError, *, as_json: bool) -> int:
    """Prints an error and returns the exit code: 2 for an invalid command line."""
    if as_json:
        print_json({"error": {"type": type(error).__name__, "message": str(error), **parts_of(error)}})
    else:
        print(f"layerzero: {error}", file=sys.stderr)
    return 2 if isinstance(error, InvalidRequestError) else 1


def report_usage(error: Any) -> int:
    """Reports usage errors: an unknown command or option, an invalid value."""
    message = error.format_message()
    print_json({"error": {"type": type(error).__name__, "message": message, **_parts_of_usage(error, message)}})
    return error.exit_code


def _parts_of_usage(error: Any, message: str) -> dict[str, str]:
    param, kind = getattr(error, "param", None), type(error).__name__
    option = getattr(error, "option_name", None)
    field = option or getattr(error, "param_hint", None) or (param.opts[-1] if param is not None else "command")
    wanted = {"NoSuchOption": "a known option", "MissingParameter": "a value"}.get(kind)
    wanted = wanted or ("a known command" if param is None else message)
    got = "none" if kind == "MissingParameter" else option if kind == "NoSuchOption" else _given(error, message)
    near = getattr(error, "possibilities", None) or []
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "layerzero"
    fix = f"did you mean {near[0]}?" if near else f"see `{path} --help`"
    return {"field": str(field).strip("'"), "wanted": wanted, "got": str(got), "fix": fix}


def _given(error: Any, message: str) -> str:
    """Returns the refused value, from the check that raised the error or quoted in its message."""
    faults: list[Any] = getattr(error.__cause__ or error.__context__, "errors", list)()
    quoted = re.findall(r"'([^']*)'", message)
    return str(faults[0]["input"]) if faults else (quoted or [message])[0]
