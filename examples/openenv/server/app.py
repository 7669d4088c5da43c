"""The environment of this Space. `openenv push` and uvicorn read `app`; `server` and the image run `main`."""

from __future__ import annotations

from mathturn_gym.neighbors.serve.app import create_app, uvicorn_config
from mathturn_gym.neighbors.serve.limits import Limits

app = create_app(
    "MathMultiTurnUntilCorrect-v0",
    problems="lins",
    num_turns=4,
    allowed_hosts=(),  # a Space has a name of its own, and anybody may play
    allowed_origins=("https://huggingface.co",),  # the Hub shows the page in a frame
    limits=Limits(connections_per_address=0),  # all connections come from the Hub's proxy
)


def main() -> None:
    """Serves until it is interrupted."""
    import uvicorn

    uvicorn.Server(uvicorn_config(app, host="0.0.0.0", port=8000, log_level="info")).run()


if __name__ == "__main__":
    main()
