"""The client that `openenv push` asks for: OpenEnv's own, whose actions are `{"text": …}`."""

from openenv.core import GenericEnvClient

__all__ = ["GenericEnvClient"]
