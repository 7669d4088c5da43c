"""`mathturn`: every command of the package, and how its errors are shown.

Modules are loaded when a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from mathturn_gym.base.terminal import terminal
from mathturn_gym.base.text import visible
from mathturn_gym.cli.compare import compare
from mathturn_gym.cli.compare_eval import compare_eval
from mathturn_gym.cli.demo import demo
from mathturn_gym.cli.evaluate import evaluate
from mathturn_gym.cli.info import info
from mathturn_gym.cli.models import models_app
from mathturn_gym.cli.play import play
from mathturn_gym.cli.problems import problems_app
from mathturn_gym.cli.serve import serve
from mathturn_gym.cli.train import train
from mathturn_gym.cli.verify import verify
from mathturn_gym.cli.view import view
from mathturn_gym.errors import MathTurnError

app = typer.Typer(
    name="mathturn",
    help="Multi-turn mathematics reinforcement learning for language models.\n\n"
    "New here? `mathturn demo` trains a small policy and shows what it learned; `mathturn play` lets you take its place.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # users' mistakes are one line; anything else is a bug, whose traceback is wanted
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(version("mathturn-gym"))
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options before the command."""


app.command()(demo)
app.command()(train)
app.command()(compare)
app.command("eval")(evaluate)
app.command("compare-eval")(compare_eval)
app.command()(play)
app.command()(view)
app.command()(info)
app.command()(serve)
app.command()(verify)
app.add_typer(problems_app, name="problems")
app.add_typer(models_app, name="models")


def main() -> None:
    """Runs the command line; a user's mistake is one red line and exit code 2, Ctrl-C is exit code 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal has no character for is shown as a question mark
            stream.reconfigure(errors="replace")
    console = terminal(stderr=True)  # an error must not end up in redirected output
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except MathTurnError as error:
        console.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        console.print(visible(str(error)), markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        # Errors of files are `StorageError`s; one without a file's name is the output's: a full disk, a closed pipe.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EPIPE, errno.EIO):
            raise
        console.print(f"[bold red]error:[/] the output cannot be written: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("interrupted; what was written so far is whole (--resume goes on from it)")
        sys.exit(130)
