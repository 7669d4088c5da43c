"""The environment as a server, in OpenEnv's protocol, and the client that is the environment again.

    mathturn serve --problems lins                                        here
    gym.make("MathMultiTurn-v0", server="http://127.0.0.1:8000")          there

`docs/serve.md` says how. The server needs `pip install '.[serve]'`, the client only `websockets`
(`pip install '.[client]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.neighbors.serve.app import create_app, serve
    from mathturn_gym.neighbors.serve.client import RemoteEnv, RemoteVectorEnv
    from mathturn_gym.neighbors.serve.limits import Limits

__all__ = ["Limits", "RemoteEnv", "RemoteVectorEnv", "create_app", "serve"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "app": "create_app serve",
            "client": "RemoteEnv RemoteVectorEnv",
            "limits": "Limits",
        },
    )
