"""`transformers serve` with LayerZero: `python -m layerzero.integrations.transformers.serve ARGUMENTS`, with its arguments.

Each model that the server loads is kernelized. With `--attn-implementation layerzero` it has LayerZero's attention alone, and
with any other one it stays as Transformers made it.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from layerzero.errors import NotInstalledError
from layerzero.host.optional import need
from layerzero.integrations.pipelines import kernelize_or_warn
from layerzero.integrations.transformers.run.attention import register
from layerzero.integrations.transformers.run.continuous import NAMES


def _serving(own: Any) -> Any:
    class ModelManager(own):
        attn_implementation: str | None

        def _validate_args(self) -> None:
            """Transformers has a list of attentions in its code: ours is not on it, and is registered where it is asked for."""
            given = self.attn_implementation
            if given in NAMES:
                register()
                self.attn_implementation = None
            try:
                super()._validate_args()
            finally:
                self.attn_implementation = given

        def _load_model(self, *args: Any, **kwargs: Any) -> Any:
            model = super()._load_model(*args, **kwargs)
            if self.attn_implementation is None:
                kernelize_or_warn(model, "of the server")
            return model

    return ModelManager


@contextlib.contextmanager
def served() -> Iterator[Any]:
    """While inside, servers of Transformers are built with LayerZero's manager of models, which is the value."""
    need("transformers", what="transformers serve")
    try:
        from transformers.cli.serving import model_manager
    except ImportError as error:
        wanted = "a version of Transformers with cli.serving.model_manager, such as 5.24"
        raise NotInstalledError(
            "transformers serve", wanted, str(error), "pip install -U 'transformers[serving]'"
        ) from None
    own: Any = model_manager.ModelManager
    model_manager.ModelManager = _serving(own)  # type: ignore[misc]
    try:
        yield model_manager.ModelManager
    finally:
        model_manager.ModelManager = own  # type: ignore[misc]


def main(arguments: Sequence[str]) -> None:
    absent = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
    if absent:
        raise NotInstalledError(
            "transformers serve", "the packages fastapi, uvicorn and openai", f"no {', no '.join(absent)}",
            "pip install 'transformers[serving]'",
        )  # fmt: skip
    with served():
        from transformers.cli.transformers import app

        app(args=["serve", *arguments], prog_name="transformers")


if __name__ == "__main__":
    main(sys.argv[1:])
