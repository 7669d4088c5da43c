"""The environment as a server, in OpenEnv's protocol, and the client that is the environment again.

    mathturn serve --problems lins                                        here
    gym.make("MathMultiTurn-v0", server="http://127.0.0.1:8000")          there

`docs/serve.md` says how. The server needs `pip install 'mathturn-gym[serve]'`, the client only `websockets`
(`pip install 'mathturn-gym[client]'`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mathturn_gym.serve.app import create_app, serve
    from mathturn_gym.serve.client import RemoteEnv, RemoteVectorEnv
    from mathturn_gym.serve.limits import Limits

__all__ = ["Limits", "RemoteEnv", "RemoteVectorEnv", "create_app", "serve"]

_HOME: Final = {
    "Limits": "limits",
    "RemoteEnv": "client",
    "RemoteVectorEnv": "client",
    "create_app": "app",
    "serve": "app",
}


def __getattr__(name: str) -> Any:
    """Loads a public name's module when the name is first asked for: a client needs none of the server's libraries."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
