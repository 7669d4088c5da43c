"""A Ray that is not there, or of another version, is named at the start."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError


@pytest.fixture
def ray_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says which version of Ray is installed; the engine is then imported anew."""
    ours = importlib.metadata.version

    def say(found: str | None) -> None:
        def version(name: str) -> str:
            if name != "ray":
                return ours(name)
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr("mathturn_gym.neighbors.require.version", version)
        for name in [name for name in sys.modules if name.startswith("mathturn_gym.neighbors.engines.ray")]:
            monkeypatch.delitem(sys.modules, name)

    return say


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, r"ray is not installed: .*pip install '\.\[ray\]'"),
        ("1.13.0", r"ray 1.13.0 is installed, this needs >=2.50,<3"),
    ],
)
def test_the_engine_says_what_to_install(ray_version: Any, version: str | None, message: str) -> None:
    ray_version(version)
    with pytest.raises(MissingDependencyError, match=message):
        importlib.import_module("mathturn_gym.neighbors.engines.ray")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollout_actors": 0}, "rollout_actors must be"),
        ({"policy_actors": -1}, "policy_actors must be"),
        ({"start_timeout": 0.0}, "start_timeout must be above 0"),
        ({"placement": "PACKED"}, "did you mean 'PACK'"),
        ({"gpus": -0.5}, "gpus must be"),
    ],
)
def test_settings_are_checked(values: dict[str, Any], message: str) -> None:
    from mathturn_gym.neighbors.engines.ray_settings import RaySettings

    with pytest.raises(InvalidValueError, match=message):
        RaySettings(**values)


def test_actors_without_a_gpu_beside_one_that_is_visible_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray hides nothing from an actor that asks for no GPU: all models would go to the learner's."""
    from mathturn_gym.neighbors.engines.ray_settings import RaySettings

    RaySettings().check_devices(None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InvalidValueError, match=r"gpus=0: .* would load it to cuda:0"):
        RaySettings().check_devices(None)
    RaySettings(gpus=0.5).check_devices(None)
    RaySettings().check_devices("cpu")
