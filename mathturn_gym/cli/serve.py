"""`mathturn serve`: the environment as a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mathturn_gym.cli._options import grouped


@grouped(
    {
        "Address": ("host", "port", "log_level"),
        "Access and limits": (
            "api_key_file",
            "max_sessions",
            "session_timeout",
            "max_message_bytes",
            "steps_per_second",
            "requests_per_second",
        ),
    }
)
def serve(
    env_id: Annotated[str, typer.Option("--env", help="Environment id.")] = "MathMultiTurn-v0",
    problems: Annotated[str, typer.Option(help="Built-in name or a file of problems.")] = "lins",
    tokenizer: Annotated[str, typer.Option(help="builtin, a folder, or a hub name.")] = "builtin",
    num_turns: Annotated[int | None, typer.Option(help="Turns of an episode; the id's own if left out.")] = None,
    feedback: Annotated[str, typer.Option(help="Feedback mode.")] = "plain",
    max_completion_tokens: Annotated[int, typer.Option(help="The most tokens of one answer.")] = 1024,
    max_context_tokens: Annotated[int | None, typer.Option(help="Budget of a whole episode.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Text of a system message.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with API keys, one per line; MATHTURN_API_KEY is taken as one as well.")
    ] = None,
    max_sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 256,
    session_timeout: Annotated[float, typer.Option(help="Seconds without a message until a session is ended.")] = 600.0,
    max_message_bytes: Annotated[int, typer.Option(help="The most bytes of one message.")] = 2**20,
    steps_per_second: Annotated[float, typer.Option(help="Messages of a session per second; 0 for no limit.")] = 100.0,
    requests_per_second: Annotated[
        float, typer.Option(help="New sessions and HTTP requests of an address per second; 0 for no limit.")
    ] = 50.0,
    log_level: Annotated[str, typer.Option(help="critical, error, warning, info, debug.")] = "info",
) -> None:
    r"""Serve the environment to other processes and machines, in OpenEnv's protocol.

    A client is `gym.make("MathMultiTurn-v0", server="http://127.0.0.1:8000")`, or anything that speaks OpenEnv. A page to
    play an episode on is at `/play`. `docs/serve.md` has all of it.
    """
    import os

    from mathturn_gym.neighbors.serve import Limits
    from mathturn_gym.neighbors.serve import serve as run

    limits = Limits(
        max_sessions=max_sessions,
        session_timeout=session_timeout,
        max_message_bytes=max_message_bytes,
        steps_per_second=steps_per_second,
        requests_per_second=requests_per_second,
    )
    chosen = {"num_turns": num_turns, "max_context_tokens": max_context_tokens}
    run(
        env_id,
        host=host,
        port=port,
        limits=limits,
        api_keys=_keys(api_key_file, os.environ.get("MATHTURN_API_KEY")),
        log_level=log_level,
        problems=problems,
        tokenizer=tokenizer,
        feedback=feedback,
        max_completion_tokens=max_completion_tokens,
        system_prompt=system_prompt,
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _keys(file: Path | None, variable: str | None) -> list[str]:
    """The keys of a file and of the environment; never of the command line, which others can read."""
    from mathturn_gym.errors import InvalidValueError

    keys = [] if variable is None else [variable]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"api_key_file cannot be read: {error}") from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise InvalidValueError(f"api_key_file {file} holds no key: write one per line")
        keys += found
    return keys
