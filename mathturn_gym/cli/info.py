"""`mathturn info`: what is installed, which names there are, and what an environment looks like."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from mathturn_gym.base.terminal import terminal

_LIBRARIES: Final = (
    "mathturn-gym",
    "gymnasium",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
    "math-verify",
    "sympy",
    "stable-baselines3",
    "matplotlib",
    "tensorboard",
    "pyarrow",
    "datasets",
    "trl",
)


def info(
    env_id: Annotated[str | None, typer.Argument(help="An environment id, to see its spaces and first prompt.")] = None,
) -> None:
    """Show versions, environment ids, problems, feedback modes and presets; or one environment's spaces and prompt."""
    console = terminal()
    if env_id is not None:
        _environment(console, env_id)
        return
    from mathturn_gym.baselines.algorithms import registered
    from mathturn_gym.baselines.tasks import task_names
    from mathturn_gym.env import ENV_DEFAULTS
    from mathturn_gym.env.feedback import FEEDBACK
    from mathturn_gym.problems.families import NAMES

    table = Table(title=f"Python {platform.python_version()} on {platform.machine()}", title_justify="left")
    table.add_column("library")
    table.add_column("version")
    for name in _LIBRARIES:
        table.add_row(name, _version(name))
    console.print(table)
    for title, names in (
        ("environments", ENV_DEFAULTS),
        ("problems (NAME or NAME:SPLIT, or a .jsonl file)", NAMES),
        ("feedback", FEEDBACK),
        ("tasks of `mathturn train`", task_names()),
        ("algorithms", registered()),
    ):
        console.print(f"[bold]{title}[/]: {', '.join(names)}", highlight=False)


def _environment(console: Console, env_id: str) -> None:
    import gymnasium as gym

    from mathturn_gym.env import ENV_DEFAULTS, MathMultiTurnEnv
    from mathturn_gym.errors import raise_unknown_name

    if env_id not in ENV_DEFAULTS:
        raise_unknown_name("environment", env_id, ENV_DEFAULTS)
    env = gym.make(env_id)
    base = env.unwrapped
    assert isinstance(base, MathMultiTurnEnv)
    observation, first = env.reset(seed=0)
    rows = {
        "action space": base.action_space,
        "observation space": base.observation_space,
        "turns": base.num_turns,
        "stops on success": base.stop_on_success,
        "problems": base.source.name,
        "first observation": observation.tolist(),
        "as text": repr(base.dialogue.decode(observation)),
        "info": first,
    }
    for name, value in rows.items():
        console.print(f"[bold]{name}[/]: ", end="")
        console.print(str(value), markup=False, soft_wrap=True)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"
