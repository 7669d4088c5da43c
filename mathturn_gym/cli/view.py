"""`mathturn view`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.errors import InvalidValueError


def view(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [OTHER]...", help="Run folders or files of episodes; several are laid side by side."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The HTML file; by default view.html in RUN's folder.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help='Says what the token ids mean: a folder, a hub name or "builtin"; by default the run\'s own.'
        ),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Follow runs that are still going: serve the page to this machine only.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0 takes a free one.")] = 0,
) -> None:
    """Make one HTML file of a run: its dialogues, every token, and its curves. The file needs no network.

    RUN is a folder that `mathturn eval`, `demo` or `train` wrote, a file of episodes (`.jsonl`, `.jsonl.gz`, `.parquet`),
    or a log of TRL, verl, verifiers or Inspect (docs/view.md says which).

    Examples: `mathturn view runs/demo`, `mathturn view runs/a runs/b --out compare.html --open`,
    `mathturn view runs/eval --serve`.
    """
    import webbrowser

    console = terminal()
    if serve:
        if out is not None:
            raise InvalidValueError("--serve writes no file: leave --out away, or make the page without --serve")
        _serve(runs, tokenizer, port, open_it=open_it, console=console)
        return
    from mathturn_gym.show.view import write_view

    run = runs[0]
    # In the run's own folder, where the next call replaces it.
    beside = run / "view.html" if run.is_dir() else run.with_name(f"{run.name.partition('.')[0]}.view.html")
    target = write_view(out or beside, runs, tokenizer=tokenizer)
    say(console, f"{target} ({target.stat().st_size / 1e6:.1f} MB)")
    if open_it:
        webbrowser.open(target.resolve().as_uri())


def _serve(runs: list[Path], tokenizer: str | None, port: int, *, open_it: bool, console: Console) -> None:
    import webbrowser

    from mathturn_gym.show.view import Follower, ViewServer

    server = ViewServer(Follower(runs, tokenizer=tokenizer), port=port)
    say(console, f"following {', '.join(map(str, runs))} (Ctrl-C ends it)")
    say(console, server.url)
    if open_it:
        webbrowser.open(server.url)
    try:
        server.run()
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        server.close()
