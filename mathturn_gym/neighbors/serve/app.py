"""The application: OpenEnv's routes behind the middleware, and ours beside them."""

from __future__ import annotations

import functools
import ipaddress
import json
import logging
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError, MathTurnError, MissingDependencyError, install_extra
from mathturn_gym.neighbors.serve._middleware import LOOPBACK, ServerMiddleware
from mathturn_gym.neighbors.serve.environment import (
    MathAction,
    MathObservation,
    MathState,
    MathTurnEnvironment,
    RefusedError,
    Service,
)
from mathturn_gym.neighbors.serve.limits import Limits

try:
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse
    from openenv.core.env_server import ConcurrencyConfig, create_fastapi_app
except ImportError as error:  # pragma: no cover - in an environment of its own
    raise MissingDependencyError(f"the server needs OpenEnv: {install_extra('serve')}") from error


_LOG = logging.getLogger(__name__)
_SESSION_ROUTES: Final = ("/reset", "/step", "/state")
_IN_SESSIONS: Final = 'an episode is a session of the WebSocket /ws: send {"type": "reset", "data": {"seed": 0}} there'
_SWITCH_INTERVAL: Final = 0.0005
_KEY_BYTES: Final = 24
_SHUTDOWN_SECONDS: Final = 5
_PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors ",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def create_app(
    env: str | EnvConfig = "MathMultiTurn-v0",
    *,
    limits: Limits | None = None,
    api_keys: Sequence[str] = (),
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] = (),
    **keywords: Any,
) -> FastAPI:
    """The environment as an OpenEnv application, for any ASGI server.

    Besides OpenEnv's routes (`/ws`, `/schema`, `/metadata`, `/health` and the tasks) it has `/info` (settings and protocol version), `/ready` (503 where no session is free), `/metrics` (Prometheus) and `/play` (a
    page to play an episode on, also at `/` and `/web`).

    Args:
        env: Environment id, or a config.
        limits: See `Limits`.
        api_keys: Any of them opens the server; none leaves it open to all who may reach it.
        allowed_hosts: Names by which clients may address the server (their `Host` header); empty allows any name. None
            allows any name where there are keys, and those of this machine where there are none: a web page whose name
            was pointed at this machine is then refused.
        allowed_origins: Web pages that may use the server and show its page in a frame, as "https://host:port"; its own may
            use it, and programs, which name no page.
        **keywords: Of `gym.make`; they replace those of a config.

    Raises:
        InvalidValueError: a keyword outside what is allowed, or an empty key.
    """
    if any(not key or key != key.strip() for key in api_keys):
        raise InvalidValueError("api_keys must be texts without blanks around them, got an empty or padded one")
    limits = limits or Limits()
    config = env.replace(**keywords) if isinstance(env, EnvConfig) else EnvConfig(env, **keywords)
    service = Service(config, limits)
    app = create_fastapi_app(
        functools.partial(MathTurnEnvironment, service),
        MathAction,
        MathObservation,
        # OpenEnv's own time-out is for sessions without a WebSocket; those that have one are timed by the middleware.
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=limits.max_sessions, session_timeout=limits.session_timeout
        ),
        env_name=config.id,
        state_cls=MathState,
        mode="simulation",
    )
    app.title, app.description = "mathturn_gym", "A multi-turn mathematics environment in OpenEnv's protocol."
    # OpenEnv's /mcp would make an environment to say that it has no tools (ours does not), and sessions opened over HTTP would only take places. OpenEnv gives each request over HTTP an
    # environment of its own, in which no step can follow a reset.
    app.router.routes[:] = [
        route for route in app.router.routes if getattr(route, "path", None) not in ("/mcp", *_SESSION_ROUTES)
    ]
    _add_routes(app, service, " ".join(allowed_origins) or "'none'")
    if allowed_hosts is None:
        allowed_hosts = () if api_keys else LOOPBACK
    app.add_middleware(
        ServerMiddleware,
        limits=limits,
        keys=tuple(api_keys),
        hosts=tuple(allowed_hosts),
        origins=tuple(allowed_origins),
        metrics=service.metrics,
    )
    app.state.service = service
    return app


def serve(
    env: str | EnvConfig = "MathMultiTurn-v0",
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    api_keys: Sequence[str] | None = None,
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] = (),
    trusted_proxies: str = "",
    log_level: str = "info",
    **keywords: Any,
) -> None:
    """Serves an environment until it is interrupted.

    Args:
        env: Environment id, or a config.
        host: Address to listen at.
        port: Port to listen at.
        limits: See `Limits`.
        api_keys: See `create_app`; None makes one and logs it, so that no other user of the machine and no page in a
            browser can use the server.
        allowed_hosts: See `create_app`.
        allowed_origins: See `create_app`.
        trusted_proxies: Addresses of reverse proxies, with commas, whose `X-Forwarded-For` is believed; connections of
            one address are then not limited here, since all come from the proxy.
        log_level: Of uvicorn.
        **keywords: See `create_app`.

    Raises:
        InvalidValueError: see `create_app`.
    """
    import uvicorn

    if api_keys is None:
        api_keys = [secrets.token_urlsafe(_KEY_BYTES)]
        shown = host if _is_loopback(host) else "THIS_HOST"
        _LOG.warning(
            "the server's key, made for this start: %s (clients: MATHTURN_API_KEY=%s; page: http://%s:%d/play#%s)",
            api_keys[0], api_keys[0], shown, port, api_keys[0],
        )  # fmt: skip
    elif not api_keys and not _is_loopback(host):
        _LOG.warning("serving at %s without an API key: everyone who reaches this address can use it", host)
    if trusted_proxies:
        limits = replace(limits or Limits(), connections_per_address=0)
    app = create_app(
        env,
        limits=limits,
        api_keys=api_keys,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
        **keywords,
    )
    proxies: dict[str, Any] = {"proxy_headers": True, "forwarded_allow_ips": trusted_proxies} if trusted_proxies else {}
    uvicorn.Server(uvicorn_config(app, host=host, port=port, log_level=log_level, **proxies)).run()


def uvicorn_config(app: FastAPI, **settings: Any) -> Any:
    """A `Config` of uvicorn for an application of `create_app`: its limits as far as they are the connection's."""
    import uvicorn

    from mathturn_gym.neighbors.serve._connections import connection_classes

    service: Service = app.state.service
    limits = service.limits
    http, ws = connection_classes(limits, service.metrics)
    # The loop must get its turn while a thread decodes or verifies: Python's 5 ms would be a fifth of what a step may take.
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL))
    return uvicorn.Config(
        app,
        http=http,
        ws=ws,
        ws_max_size=limits.max_message_bytes,
        ws_per_message_deflate=False,  # costs more than it saves between machines of one rack
        # What is over the sessions is answered (429, or OpenEnv's CAPACITY_REACHED); far over it, not even that.
        limit_concurrency=limits.max_connections,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        server_header=False,
        # uvicorn believes X-Forwarded-For of this machine unless it is told not to.
        **{"access_log": False, "proxy_headers": False, **settings},
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _add_routes(app: FastAPI, service: Service, framed_by: str) -> None:
    page = (files("mathturn_gym") / "assets" / "serve" / "play.html").read_text(encoding="utf-8")

    @app.get("/info", tags=["Environment Info"])
    async def info() -> dict[str, Any]:
        """Settings of the environment and the version of the protocol."""
        return service.about

    @app.get("/ready", tags=["Health"])
    async def ready() -> JSONResponse:
        """200 where a session is free, 503 where none is."""
        free = max(0, service.limits.max_sessions - service.metrics.open_sessions)
        return JSONResponse({"free_sessions": free}, 200 if free else 503)

    @app.get("/metrics", tags=["Health"])
    async def metrics() -> Response:
        """Counters in Prometheus's text format."""
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4")

    policy = _PAGE_HEADERS["content-security-policy"] + framed_by

    @app.get("/", include_in_schema=False)
    @app.get("/web", include_in_schema=False)  # where a Space of OpenEnv opens
    @app.get("/play", tags=["Environment Control"])
    async def play() -> HTMLResponse:
        """A page on which to play an episode."""
        return HTMLResponse(page, headers={**_PAGE_HEADERS, "content-security-policy": policy})

    async def session_route() -> JSONResponse:
        return JSONResponse({"detail": _IN_SESSIONS}, 410)

    for path in _SESSION_ROUTES:
        app.add_api_route(path, session_route, methods=["GET", "POST"], include_in_schema=False)

    @app.post("/mcp", tags=["Environment Control"])
    async def mcp(request: Request) -> dict[str, Any]:
        """JSON-RPC's "method not found": there are no tools. OpenEnv's validator asks that this path answers."""
        asked = json.loads(await request.body() or "{}").get("id")
        error = {"code": -32601, "message": f"this environment has no tools: {_IN_SESSIONS}"}
        return {"jsonrpc": "2.0", "id": asked if isinstance(asked, (str, int)) else None, "error": error}

    async def mistake(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    app.add_exception_handler(MathTurnError, mistake)
    app.add_exception_handler(RefusedError, mistake)
