"""`mathturn serve`: the environment as a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mathturn_gym.cli._options import EnvOptions, grouped, with_env_options
from mathturn_gym.env.config import EnvConfig


@with_env_options
@grouped(
    {
        "Address": ("host", "port", "log_level"),
        "Access": ("api_key_file", "no_key", "allowed_host", "allowed_origin", "trusted_proxies"),
        "Limits": ("max_sessions", "sessions_per_client", "session_timeout", "max_message_bytes"),
    }
)
def serve(
    env: EnvOptions,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with API keys, one per line; MATHTURN_API_KEY is taken as one as well. Without either, a key is made"
            " and shown."
        ),
    ] = None,
    max_sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 256,
    session_timeout: Annotated[float, typer.Option(help="Seconds without a message until a session is ended.")] = 600.0,
    max_message_bytes: Annotated[int, typer.Option(help="The most bytes of one message.")] = 2**20,
    sessions_per_client: Annotated[
        int, typer.Option(help="Sessions at once of one key (or address, without keys); 0 lets one take all.")
    ] = 0,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Ask for no key: all who reach the server may play.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name by which clients may address the server without a key; repeatable. This machine's else."
        ),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="Web page that may use the server, as https://host; repeatable.")
    ] = None,
    trusted_proxies: Annotated[
        str, typer.Option(help="Addresses of reverse proxies whose X-Forwarded-For is believed, with commas.")
    ] = "",
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
        sessions_per_client=sessions_per_client,
    )
    run(
        env.config(EnvConfig("MathMultiTurn-v0", problems="lins")),
        host=host,
        port=port,
        limits=limits,
        api_keys=_keys(api_key_file, os.environ.get("MATHTURN_API_KEY"), no_key=no_key),
        allowed_hosts=allowed_host,
        allowed_origins=allowed_origin or (),
        trusted_proxies=trusted_proxies,
        log_level=log_level,
    )


def _keys(file: Path | None, variable: str | None, *, no_key: bool) -> list[str] | None:
    """The keys of a file and of the environment, never of the command line, which others can read; None where none is."""
    from mathturn_gym.errors import InvalidValueError

    if no_key:
        if file is not None:
            raise InvalidValueError("--no-key asks for no key and --api-key-file for one of its keys: give one of them")
        return []
    keys = [] if variable is None else [variable]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"api_key_file cannot be read: {error}") from error
        found = [line.strip() for line in lines if line.strip()]
        # A mistake: a key that is made instead would be one that no client has.
        if not found:
            raise InvalidValueError(f"api_key_file {file} holds no key: write one per line")
        keys += found
    return keys or None
