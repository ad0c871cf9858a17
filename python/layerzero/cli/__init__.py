"""The commands of `layerzero`, one file each.

A file `<command>.py`, or `<group>_<command>.py` for `layerzero <group> <command>`, has a function `command` with typer's
annotations; its docstring is the help text. The list of commands shows the first sentence, which has at most 60
characters. Files that begin with an underscore are helpers. Commands are found by file name.

With --json a command prints one JSON document with the schema schemas/cli/<command>.schema.json, also for errors.
"""

import functools
import importlib
import inspect
import pkgutil
from typing import Annotated, Any

import typer

# click's ClickException: newer Typers vendor click, whose UsageError derives from it.
_UsageFault: Any = typer.BadParameter.__bases__[0].__bases__[0]
EXIT_CODES = (
    "Exit codes: 0: done; 1: the answer is no (no kernel, a problem found, a bar missed), or the work failed; "
    "2: invalid command line (an unknown name, a bad value, a call that breaks its contract); 130: interrupted."
)
GROUPS = {
    "bench": "Measurements on this machine.",
    "cache": "Files that LayerZero keeps on disk.",
    "graphs": "Which kernels are proven safe in CUDA graphs.",
    "perfdb": "Measured times of kernels: the performance database.",
    "health": "Kernels that failed and are not selected.",
    "policy": "The policy in force, and policy files.",
}


def application() -> typer.Typer:
    """Returns the application with all commands of this folder."""
    app = typer.Typer(
        name="layerzero",
        help="The best installed kernel for each inference operation, and the reason for every choice.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    groups: dict[str, typer.Typer] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_"):
            continue
        function = importlib.import_module(f"{__name__}.{module.name}").command
        group, _, name = module.name.partition("_")
        if not name:
            _add(app, group, function)
            continue
        if group not in groups:
            groups[group] = typer.Typer(help=GROUPS.get(group), no_args_is_help=True)
            app.add_typer(groups[group], name=group)
        _add(groups[group], name, function)
    globals()["run"] = _run  # importing the module `run` of this folder has set the attribute of that name
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from layerzero import version_info

        print(f"layerzero {version_info.build}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="version and build")
    ] = False,
) -> None:
    """Handles the options of the program itself; the application has its help text."""


def _add(app: typer.Typer, name: str, function: Any) -> None:
    settings = getattr(function, "context_settings", None)
    own = getattr(function, "cls", None)
    hidden = bool(getattr(function, "hidden", bool)())
    app.command(name.replace("_", "-"), cls=own, context_settings=settings, hidden=hidden)(_with_manner(function))


def _with_manner(function: Any) -> Any:
    """Adds --quiet and --verbose to a command; a command with parameters of these names receives them."""
    from layerzero.cli._output import Quiet, Verbose, answers, manner

    signature, common = inspect.signature(function), {"quiet": Quiet, "verbose": Verbose}

    @functools.wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        asked = {name: given[name] if name in signature.parameters else given.pop(name) for name in common}
        with answers(bool(given.get("json"))), manner(**asked):
            return function(*args, **given)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
        for name, option in common.items()
        if name not in signature.parameters
    ]
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, **{p.name: p.annotation for p in added}}
    return command


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code. Errors are one message on standard error, JSON with --json."""
    from layerzero.cli._output import report_usage

    as_json = "--json" in arguments
    try:
        # Typer prints usage errors as text; with --json they are raised instead.
        code = application()(arguments, prog_name="layerzero", standalone_mode=not as_json)
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except _UsageFault as error:
        return report_usage(error)


_run = run
