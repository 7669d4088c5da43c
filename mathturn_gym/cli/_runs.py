"""What commands begin with: a policy by name, the environment that a run or a task says it belongs to, its problems."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import InvalidValueError

if TYPE_CHECKING:
    from mathturn_gym.policies import PolicyConfig
    from mathturn_gym.problems import ProblemSource


@dataclass(frozen=True, slots=True)
class Start:
    """A policy and its environment."""

    name: str  # as the user said it, or the task's
    policy: PolicyConfig  # what `load_policy` is given
    env: EnvConfig  # environment and splits
    classic: bool = False  # it is a run of stable-baselines3
    samples: int = 1  # episodes per problem

    def load(self, **changes: Any) -> Any:
        """The policy, ready to play; changes of `PolicyConfig` that are None are left as they are."""
        given = {name: value for name, value in changes.items() if value is not None}
        if not self.classic:
            from mathturn_gym.wrappers import load_policy

            return load_policy(self.config(**given))
        from mathturn_gym.baselines.classic import load_classic

        meant = sorted(set(given) - {"seed"})
        if meant:
            raise InvalidValueError(f"{meant[0]} has no meaning for {self.name!r}, a run of a classic algorithm")
        return load_classic(self.name, own_code=True)  # `start_of` asked the gate

    def config(self, **changes: Any) -> PolicyConfig:
        """Returns the policy as plain data, to be loaded in another process."""
        if self.classic:
            raise InvalidValueError(f"{self.name!r} is a run of a classic algorithm: it plays with --engine local")
        return replace(self.policy, **{name: value for name, value in changes.items() if value is not None})

    def sampling(self, **changes: Any) -> dict[str, Any]:
        """How the policy samples, as an evaluation records it: what is used, not what was left out."""
        from mathturn_gym.wrappers.loading import resolved_config

        names = ("temperature", "top_p", "top_k", "min_p", "grammar", "dtype")
        if self.classic:
            return {name: getattr(self.policy, name) for name in names}
        config = resolved_config(self.config(**changes))
        return {name: getattr(config, name) for name in names}

    def fingerprint(self) -> str | None:
        """A text that changes when the weights do; None where there is no folder with weights."""
        from mathturn_gym.baselines.run_folder import fingerprint

        folder = Path(self.policy.model)
        return fingerprint(folder / "checkpoint") or fingerprint(folder)  # a run's, or a model's folder


def policy_settings(policy: PolicyConfig, texts: Sequence[str]) -> dict[str, Any]:
    """Reads `--policy-set FIELD=VALUE`: fields of `PolicyConfig`, and anything else as an option of the policy's class."""
    from mathturn_gym.baselines.overrides import parse_settings

    found = parse_settings(texts, "--policy-set")
    # These have options of their own: of two values for one field, one would win without a word.
    for name, instead in (("model", "--policy"), ("seed", "--seed"), ("options", "--policy-set OPTION=VALUE")):
        if name in found:
            raise InvalidValueError(f"--policy-set {name}=…: give {instead}")
    fields = {one.name for one in dataclasses.fields(policy)}
    # What no field is called is a keyword of the policy's class, which refuses what it does not know.
    options = {name: value for name, value in found.items() if name not in fields}
    own = {name: value for name, value in found.items() if name in fields}
    return {**own, "options": {**policy.options, **options}} if options else own


OwnCode = Annotated[
    bool,
    typer.Option("--own-code", help="Run the functions and classes that the run's config names: for runs of your own."),
]


def start_of(
    policy: str | None, task: str | None, *, max_completion_tokens: int, given: Mapping[str, Any], own_code: bool
) -> Start:
    """Policy and environment for what a user named.

    Code that `given` names may run; `own_code` says that all code may run that the run's config names.
    """
    from mathturn_gym.base.import_paths import names_code
    from mathturn_gym.policies import PolicyConfig
    from mathturn_gym.policies.config import MODEL_SCHEMES

    if task is not None:
        from mathturn_gym.baselines.tasks import load_task

        found = load_task(task)
        own = found.policy if policy is None else _named(policy, given)
        if own.model != "random" and not names_code(own.model, MODEL_SCHEMES):  # those sample as they will
            # How a task samples is part of it: a run's own temperature is not what others were measured at.
            own = dataclasses.replace(own, **found.sampling)
        return Start(policy or f"task {task}", own, found.env, samples=found.samples)
    name = "builtin" if policy is None else policy
    # A model's folder has a config.json too; metrics are a run's alone.
    if (Path(name) / "config.json").is_file() and (Path(name) / "metrics.jsonl").is_file():
        from mathturn_gym.baselines.run_folder import read_config
        from mathturn_gym.env.config import code_of

        config = read_config(name, own_code=own_code, allowed=code_of(given))
        return Start(name, PolicyConfig(name), config.env, classic=config.algorithm.kind == "classic")
    env = EnvConfig(problems="lins", num_turns=4, max_completion_tokens=max_completion_tokens)
    return Start(name, _named(name, given), env)


def _named(name: str, given: Mapping[str, Any]) -> PolicyConfig:
    """The policy behind a name. A server sends ids, so the tokenizer of the environment is the policy's as well."""
    from mathturn_gym.policies import PolicyConfig

    served = name.startswith(("http://", "https://"))
    return PolicyConfig(name, tokenizer=given.get("tokenizer") if served else None)


def check_counts(**counts: int | None) -> None:
    """Raises `InvalidValueError` for an option that counts something and is below 1 (a seed: below 0)."""
    from mathturn_gym.errors import check_int

    for name, count in counts.items():
        if count is not None:
            check_int(f"--{name.replace('_', '-')}", count, low=0 if name == "seed" else 1)


def problems_of(config: EnvConfig, split: str | None, *, named: bool) -> ProblemSource:
    """The problems that are played: a file that was named is played whole, everything else has a test split."""
    from mathturn_gym.problems.lists import FiniteSource

    if split in ("train", "validation", "test"):
        return config.problems(split)
    if split == "all":
        return config.replace(test="all").problems("test")
    if split is not None:
        raise InvalidValueError(f"--split must be train, validation, test or all, got {split!r}")
    if not named:
        return config.problems("test")
    own = config.replace(test=config.value("problems")).problems("test")  # a name may have chosen its split: "lins:all"
    return own if own.split is not None or isinstance(own, FiniteSource) else own.part("test")


def command_line(*words: str | int | Path) -> str:
    """A command as it can be typed: `mathturn eval --policy 'my run'`.

    >>> command_line("eval", "--policy", "my run")
    "mathturn eval --policy 'my run'"
    """
    return shlex.join(["mathturn", *map(str, words)])
