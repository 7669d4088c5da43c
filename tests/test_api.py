"""The public names, and what importing costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import mathturn_gym
import mathturn_gym.baselines
import mathturn_gym.policies
import mathturn_gym.wrappers

HEAVY = ("torch", "transformers", "stable_baselines3", "sympy", "math_verify", "matplotlib", "datasets", "rich")


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "imports",
    [
        "import mathturn_gym, gymnasium",
        "import gymnasium, mathturn_gym",
        "import mathturn_gym, gymnasium.spaces, gymnasium",
        "import mathturn_gym.verifier; from gymnasium import registry; import gymnasium",
    ],
)
def test_importing_registers_and_loads_nothing_heavy(imports: str) -> None:
    loaded = modules_after(
        f"{imports}\n"
        "assert {i for i in gymnasium.registry if 'Math' in i} =="
        " {'MathMultiTurn-v0', 'MathMultiTurnUntilCorrect-v0', 'MathSingleTurn-v0'}"
    )
    assert "mathturn_gym" in loaded
    assert loaded & set(HEAVY) == set()


def test_gymnasium_imports_the_package_by_its_prefix() -> None:
    code = (
        "import gymnasium; env = gymnasium.make('mathturn_gym:MathSingleTurn-v0'); assert env.unwrapped.num_turns == 1"
    )
    assert "mathturn_gym.env" in modules_after(code)


def test_the_test_of_light_imports_can_fail() -> None:
    assert "sympy" in modules_after("import sympy")


@pytest.mark.parametrize(
    ("code", "light_of"),
    [
        ("import mathturn_gym.wrappers", HEAVY),
        ("from mathturn_gym import PolicyConfig, load_policy; PolicyConfig()", HEAVY),
        ("from mathturn_gym.wrappers import ReturnsWrapper", HEAVY),
        ("from mathturn_gym import Problem, Verdict, TokenIds, load_problems", HEAVY),
        ("from mathturn_gym import MathMultiTurnEnv, collect", HEAVY),
        ("import mathturn_gym", HEAVY),
        (
            "from mathturn_gym.baselines import GRPO, Budget, RunConfig, load_task; load_task('lins').config('ppo')",
            HEAVY,
        ),
        ("import mathturn_gym.verifier", HEAVY),
        (
            "from mathturn_gym import acollect, TurnContext; from mathturn_gym.episodes.rollout import EpisodePlan",
            HEAVY,
        ),
        (
            "from mathturn_gym.env.feedback import feedback_mode; from mathturn_gym.env.verification import get_verifier",
            HEAVY,
        ),
        ("import mathturn_gym.cli.app, mathturn_gym.compare.worker", ("torch", "transformers", "matplotlib")),
    ],
)
def test_names_load_what_they_need(code: str, light_of: tuple[str, ...]) -> None:
    assert modules_after(code) & set(light_of) == set()


@pytest.mark.parametrize(
    "package", [mathturn_gym, mathturn_gym.baselines, mathturn_gym.policies, mathturn_gym.wrappers]
)
def test_every_public_name_exists_and_is_listed(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    for name in names:
        value = getattr(package, name)
        assert value is not None
        home = getattr(value, "__module__", None)
        if home is not None and hasattr(value, "__name__"):
            assert getattr(import_module(home), value.__name__) is value
    assert set(names) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # type: ignore[attr-defined]  # noqa: B018


PUBLIC: dict[str, str] = {
    "mathturn_gym": (
        "CausalLMPolicy Completion Dialogue EnvConfig Episode EpisodeState MathMultiTurnEnv MathMultiTurnVectorEnv"
        " MathTurnError PackedBatch Policy PolicyConfig Problem ProblemSource Status StepInfo StopReason TokenIds"
        " Turn TurnContext Verdict Verifier __version__ acollect collect load_policy load_problems pack"
    ),
    "mathturn_gym.env": "ENV_DEFAULTS EnvConfig EpisodeState MathMultiTurnEnv MathMultiTurnVectorEnv StepInfo",
    "mathturn_gym.env.dialogue": "CHATML_TEMPLATE Dialogue Tokenizer TurnDialogue completion_ids load_tokenizer",
    "mathturn_gym.env.feedback": "AboveBelow FEEDBACK Feedback TemplateFeedback feedback_mode hint plain",
    "mathturn_gym.episodes": "PackedBatch acollect collect pack read_episodes summarize unpack write_episodes",
    "mathturn_gym.episodes.rollout": "AsyncPolicy EpisodePlan EpisodeRecorder acollect check_tokenizer collect",
    "mathturn_gym.errors": (
        "ChatTemplateError CheckpointError EngineError EpisodeStateError InvalidActionError InvalidEpisodeError"
        " InvalidValueError LockedError MathTurnError MissingDependencyError PolicyError ProblemFileError"
        " PromptTooLongError RunError ServerError SharedPromptsError StorageError UserFunctionError VerifierError"
    ),
    "mathturn_gym.types": (
        "Completion Episode Gold Ids NO_VERSION Number Policy Problem Status StopReason Turn TurnContext"
        " TurnRecord Verdict"
    ),
}
"""Every public name of the core: a name more, or one less, is a decision."""


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_surface_is_what_was_decided(module: str) -> None:
    home = import_module(module)
    assert sorted(home.__all__) == sorted(PUBLIC[module].split())
    for name in home.__all__:
        value = getattr(home, name)
        if isinstance(value, type) or inspect.isfunction(value):
            assert (value.__doc__ or "").strip(), f"{module}.{name} is not documented"


def test_wrappers_by_their_folders_name_are_refused() -> None:
    code = "import sys; sys.path.insert(0, '.'); import wrappers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    if "ModuleNotFoundError" not in done.stderr:  # run from another folder there is nothing of that name
        assert "import mathturn_gym.wrappers, not wrappers" in done.stderr
