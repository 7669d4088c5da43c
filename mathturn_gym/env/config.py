"""`EnvConfig`: an environment and its splits as one value, the same for training, evaluation, play and comparison.

    EnvConfig("MathMultiTurnUntilCorrect-v0", problems="my.csv", verifier=my_verifier, system_prompt="…")

Its keywords are exactly those of `gym.make`: they are read off the environment's own signature, so that there is no
second list that could differ from it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from mathturn_gym.base.import_paths import import_object, import_path_of, is_import_path, names_code
from mathturn_gym.env import ENV_DEFAULTS
from mathturn_gym.errors import InvalidValueError, raise_unknown_name, shown
from mathturn_gym.types import Problem

if TYPE_CHECKING:
    from typing import Unpack

    import gymnasium as gym

    from mathturn_gym.env.dialogue import Tokenizer
    from mathturn_gym.env.dialogue._dialogue import DialogueLike, History
    from mathturn_gym.env.feedback import Feedback
    from mathturn_gym.env.rewards import RewardTerms
    from mathturn_gym.env.verification import VerifierLike
    from mathturn_gym.problems import ProblemsLike, ProblemSource

DEFAULT_ENV: Final = "MathMultiTurnUntilCorrect-v0"
SPLIT_NAMES: Final = ("train", "validation", "test")
"""The parts of a run: what is trained on, what settings and stopping are chosen by, and what is looked at once."""

_CALLABLES: Final = ("dialogue", "feedback", "verifier")
_SPLITS: Final = (*SPLIT_NAMES, "all")


class EnvKeywords(TypedDict, total=False):
    """The environment's keywords: their types for type checkers, and in a sentence what the command line says of each.

    `MathMultiTurnEnv` documents them in full. In `feedback`, `verifier`, `dialogue` and the values of `reward_terms`, the
    text "module:name" stands for the object with that import path.

    Attributes:
        problems: A name (lins:test, add2, guess8), a family (quadratic@2:test), a mixture (3*linear@1+primes), a curriculum
            (curriculum:integers,linear@1-3), a file (.jsonl, .json, .csv, .parquet), a folder of save_to_disk, or
            hf:NAME:CONFIG:SPLIT.
        tokenizer: Folder or hub name; by default the policy's own.
        dialogue: my_module:name of a dialogue of your own.
        num_turns: Turns of an episode.
        max_completion_tokens: The most tokens of one answer.
        max_context_tokens: Budget for the whole context, in tokens.
        max_episode_tokens: Budget of sampled tokens for all turns of an episode.
        max_episode_seconds: Budget of wall-clock time for an episode.
        stop_on_success: End an episode at its first right answer.
        feedback: Feedback mode, or my_module:name of your own.
        verifier: Where answers are looked for: boxed, marked or lenient; or my_module:name of your own.
        reward_scaling: What rewards are multiplied with.
        reward_bias: What is taken off rewards.
        reward_terms: NAME=WEIGHT of a term added to the reward, or NAME=my_module:name of your own; repeatable.
        verdict_noise: Shares of false negatives and false positives in reward and feedback as JSON: '{"reward": [0.3, 0.0]}'.
        system_prompt: Text of a system message.
        prompt_template: What the first message says, with {problem} where the problem's text goes.
        chat_template_kwargs: Variables of the chat template as JSON: '{"enable_thinking": false}'.
        history: What later turns see of earlier ones: keep, strip-thinking or template.
        render_mode: human (prints as it goes), ansi or rgb_array.
        gold_in_info: Put the accepted answers into the info.
    """

    problems: ProblemsLike
    tokenizer: str | Tokenizer
    dialogue: str | DialogueLike | None
    num_turns: int
    max_completion_tokens: int
    max_context_tokens: int | None
    max_episode_tokens: int | None
    max_episode_seconds: float | None
    stop_on_success: bool
    feedback: str | Feedback
    verifier: str | VerifierLike
    reward_scaling: float
    reward_bias: float
    reward_terms: RewardTerms | None
    verdict_noise: Mapping[str, Any] | None
    system_prompt: str | None
    prompt_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    history: History
    render_mode: str | None
    gold_in_info: bool


class Keyword(NamedTuple):
    """A keyword of the environment as a command line offers it."""

    kind: type  # bool, int or float; str for everything else
    text: str  # what it is, in a sentence


@cache
def env_keywords() -> Mapping[str, Keyword]:
    """The fields of `EnvKeywords`, in their order. Loads nothing: types are read as they are written.

    >>> env_keywords()["max_episode_seconds"]
    Keyword(kind=<class 'float'>, text='Budget of wall-clock time for an episode.')
    """
    kinds = {"bool": bool, "int": int, "float": float}
    _, _, listed = (inspect.getdoc(EnvKeywords) or "").partition("Attributes:\n")
    texts = dict(re.findall(r"^    (\w+): ((?:.|\n {8})*)", listed, re.MULTILINE))
    found = {}
    for name, annotation in EnvKeywords.__annotations__.items():
        written = annotation.__forward_arg__.removesuffix(" | None")
        found[name] = Keyword(kinds.get(written, str), " ".join(texts.get(name, "").split()))
    return found


@dataclass(frozen=True, init=False, repr=False)
class EnvConfig:
    """An environment and its splits.

    Only the keywords that are given are kept: every other one has the default of its environment id.

    Args:
        id: Environment id; any that makes a `MathMultiTurnEnv`.
        train: What is trained on: the name of a split of `problems` ("train", "validation", "test", "all"), or other
            problems in any form that `problems` takes.
        validation: The same for the evaluations during a run.
        test: The same for the evaluation at its end.
        allow_overlap: Let training and test (or validation) share prompts, which is an error otherwise.
        fields: Which columns of a file or data set hold what, see `load_problems`; None recognizes them.
        skip_bad_rows: Leave broken rows of a file or data set out, with a warning that counts them.
        shuffle: True plays a list or file in an order that the seed decides; None, and False, in its own.
        **keywords: Of the environment, as `gym.make` takes them.

    Raises:
        InvalidValueError: an unknown id or keyword (the nearest is suggested).

    Attributes:
        keywords: Those that were given.

    >>> config = EnvConfig(problems="lins", num_turns=3)
    >>> config.value("num_turns"), config.value("stop_on_success"), config.value("feedback")
    (3, True, 'plain')
    >>> EnvConfig.from_json(config.to_json()) == config
    True
    """

    id: str
    train: ProblemsLike
    validation: ProblemsLike
    test: ProblemsLike
    allow_overlap: bool
    fields: Mapping[str, str] | None
    skip_bad_rows: bool
    shuffle: bool | None
    keywords: Mapping[str, Any]

    def __init__(
        self,
        /,
        id: str = DEFAULT_ENV,  # noqa: A002  Gymnasium's own name for it
        *,
        train: ProblemsLike = "train",
        validation: ProblemsLike = "validation",
        test: ProblemsLike = "test",
        allow_overlap: bool = False,
        fields: Mapping[str, str] | None = None,
        skip_bad_rows: bool = False,
        shuffle: bool | None = None,
        **keywords: Unpack[EnvKeywords],
    ) -> None:
        given: object = id  # a file may say anything
        if not isinstance(given, str):
            raise_unknown_name("environment", given, ENV_DEFAULTS)
        known = env_parameters(id)
        for name in keywords:
            if name not in known:
                raise_unknown_name(f"keyword of {id}", name, (*known, *OWN_FIELDS))
        for name, value in (("allow_overlap", allow_overlap), ("skip_bad_rows", skip_bad_rows)):
            if not isinstance(value, bool):
                raise InvalidValueError(f"{name} must be True or False, got {value!r}")
        values = (id, train, validation, test, allow_overlap, fields, skip_bad_rows, shuffle, dict(keywords))
        for name, one in zip((*OWN_FIELDS, "keywords"), values, strict=True):
            object.__setattr__(self, name, one)

    def __repr__(self) -> str:
        """The expression that makes it: the values that were given."""
        defaults = inspect.signature(EnvConfig).parameters
        given = {name: value for name in OWN_FIELDS[1:] if (value := getattr(self, name)) != defaults[name].default}
        shown = "".join(f", {name}={value!r}" for name, value in {**self.keywords, **given}.items())
        return f"EnvConfig({self.id!r}{shown})"

    def value(self, keyword: str) -> Any:
        """A keyword's value in the environment that is made: the given one, its id's, or the environment's default.

        Raises:
            InvalidValueError: the environment has no such keyword.
        """
        known = env_parameters(self.id)
        if keyword not in known:
            raise_unknown_name(f"keyword of {self.id}", keyword, known)
        return self.keywords.get(keyword, known[keyword])

    def replace(self, **changes: Any) -> EnvConfig:
        """The same with other values: of the splits, of the id, or of the environment's keywords."""
        own = {name: getattr(self, name) for name in OWN_FIELDS}
        return EnvConfig(**{**own, **self.keywords, **changes})

    def problems(self, split: str) -> ProblemSource:
        """The problems of a split; a curriculum is a new one each time, without a history.

        Args:
            split: "train", "validation" or "test".

        Raises:
            InvalidValueError: an unknown split or unknown problems.
            ProblemFileError: a file that cannot be read.
        """
        if split not in SPLIT_NAMES:
            raise_unknown_name("split", split, SPLIT_NAMES)
        from mathturn_gym.problems import load_problems

        chosen = getattr(self, split)
        how: Any = {name: getattr(self, name) for name in ("fields", "skip_bad_rows", "shuffle")}
        if isinstance(chosen, str) and chosen in _SPLITS:
            return load_problems(self.value("problems"), chosen, **how)
        return load_problems(chosen, **how)

    def check_splits(self, *splits: str) -> None:
        """Refuses to train and to evaluate on the same prompts, unless `allow_overlap`.

        Args:
            *splits: Those that are evaluated on.

        Raises:
            SharedPromptsError: one of them shares prompts with what is trained on; one is shown.
        """
        from mathturn_gym.problems import check_disjoint

        train = self.problems("train")
        for split in splits:
            other = self.problems(split)
            endless = all(leaf.size is None for source in (train, other) for leaf in source.leaves())
            parts = self.train, getattr(self, split)
            differ = parts[0] != parts[1] and all(isinstance(one, str) and one in SPLIT_NAMES for one in parts)
            # Different splits of one generator share no prompts, by construction.
            if not (endless and differ):
                check_disjoint(train, other, allow=self.allow_overlap)

    def make(
        self, split: str = "train", num_envs: int | None = None, *, policy: Any = None, **changes: Any
    ) -> gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]:
        """The environment on a split.

        Args:
            split: "train", "validation" or "test".
            num_envs: That many at once, in the batched form that `collect` refills itself; None makes a single one.
            policy: Its tokenizer is the environment's, where the config names none.
            **changes: Keywords that differ this time.

        Raises:
            InvalidValueError: a keyword's value is outside what the environment allows.
        """
        import gymnasium as gym

        given = changes if "problems" in changes else {"problems": self.problems(split), **changes}
        keywords = {**self.keywords, **given}
        keywords = {name: _resolved(name, value) for name, value in keywords.items()}
        if "tokenizer" not in keywords and getattr(policy, "tokenizer", None) is not None:
            keywords["tokenizer"] = policy.tokenizer
        if num_envs is None:
            return gym.make(self.id, disable_env_checker=True, **keywords)
        return gym.make_vec(
            self.id,
            num_envs=num_envs,
            vectorization_mode="vector_entry_point",
            autoreset_mode=gym.vector.AutoresetMode.DISABLED,
            **keywords,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types.

        An object that has an import path becomes that path. Any other (a lambda, a verifier made by hand) becomes
        `{"object": DESCRIPTION}`, which tells what it was and cannot be read back.
        """
        own = {name: _to_json(getattr(self, name)) for name in OWN_FIELDS}
        return {**own, **{name: _to_json(value) for name, value in self.keywords.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvConfig:
        """The config that `to_json` gave, or that a table of a TOML file holds.

        Raises:
            InvalidValueError: an unknown field, or a value that was an object of its program.
        """
        if not isinstance(data, Mapping):
            raise InvalidValueError(f"an environment must be a table of FIELD = VALUE, got {shown(data)}")
        return cls(**{name: _from_json(name, value) for name, value in data.items()})


def code_of(data: Mapping[str, Any]) -> list[str]:
    """The import paths in an environment's table: what making the environment would load, and then call.

    Args:
        data: What `EnvConfig.to_json` gave, or what a file says in its place.

    >>> code_of({"id": "MathSingleTurn-v0", "feedback": "hint", "verifier": "my_judge:strict"})
    ['my_judge:strict']
    """
    terms = data.get("reward_terms")
    values = [data.get("id"), *map(data.get, _CALLABLES), *(terms.values() if isinstance(terms, Mapping) else ())]
    return [value for value in values if names_code(value)]


OWN_FIELDS: Final = ("id", *SPLIT_NAMES, "allow_overlap", "fields", "skip_bad_rows", "shuffle")
"""Fields that are no keyword of the environment."""


@lru_cache(maxsize=64)
def env_parameters(env_id: str) -> Mapping[str, Any]:
    """The keywords that an environment id takes, with its defaults, from its class's signature.

    Args:
        env_id: As Gymnasium knows it.

    Raises:
        InvalidValueError: unknown id (the nearest of this package is suggested), or it makes something else.

    >>> env_parameters("MathSingleTurn-v0")["num_turns"]
    1
    """
    import gymnasium as gym
    from gymnasium.envs.registration import load_env_creator

    from mathturn_gym.env.environment import MathMultiTurnEnv

    try:
        spec = gym.spec(env_id)
    except (gym.error.Error, ImportError, TypeError, AttributeError) as error:
        if ":" in str(env_id):
            raise InvalidValueError(f"environment {env_id!r} cannot be loaded: {error}") from error
        raise_unknown_name("environment", env_id, ENV_DEFAULTS)
    entry: Any = spec.entry_point
    if env_id in ENV_DEFAULTS:  # its entry point is a function, which may also connect to a server
        kind: Any = MathMultiTurnEnv
    else:
        kind = load_env_creator(entry) if isinstance(entry, str) else entry
    if not (isinstance(kind, type) and issubclass(kind, MathMultiTurnEnv)):
        raise InvalidValueError(f"environment {env_id!r} must make a MathMultiTurnEnv, got {kind!r}")
    parameters = inspect.signature(kind).parameters
    return {**{name: one.default for name, one in parameters.items()}, **spec.kwargs}


def _resolved(keyword: str, value: Any) -> Any:
    """A keyword's value with the objects that import paths name."""
    if keyword == "reward_terms" and isinstance(value, Mapping):
        return {name: _imported(f"reward_terms[{name!r}]", one) for name, one in value.items()}
    if keyword not in _CALLABLES:
        return value
    if keyword == "feedback" and isinstance(value, str):
        from mathturn_gym.env.feedback import FEEDBACK

        if value in FEEDBACK:  # "plain:zh" is a mode, though it looks like an import path
            return value
    return _imported(keyword, value)


def _imported(field: str, value: Any) -> Any:
    return import_object(field, value) if isinstance(value, str) and is_import_path(value) else value


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _to_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Problem):
        return {one.name: _to_json(getattr(value, one.name)) for one in fields(Problem)}
    path = import_path_of(value)
    if path is not None:
        return path
    kind = type(value)
    described = getattr(value, "name", None) or getattr(value, "__qualname__", None) or ""
    return {"object": f"{kind.__module__}:{kind.__qualname__}" + (f" {described}" if described else "")}


def _from_json(field: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(field, one) for one in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"object"}:
        raise InvalidValueError(f"{field} was an object of its program ({value['object']}): give it again from Python")
    if set(value) == {one.name for one in fields(Problem)}:
        return Problem(**value)
    return {name: _from_json(f"{field}[{name!r}]", one) for name, one in value.items()}
