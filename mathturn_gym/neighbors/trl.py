"""TRL's `GRPOTrainer` on this environment: a rollout, credit per turn, and an environment with a tool.

    rollout = TurnRollout(num_turns=4, max_completion_tokens=256)
    trainer = TurnLevelGRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", args, rollout.dataset("lins", 1000), rollout=rollout)
    trainer.train()

A row of the data set is one problem, found again by its id. TRL repeats it `num_generations` times: those episodes are a
group, also where a group lies across several processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, get_args

import gymnasium as gym
import numpy as np
import torch

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.episodes.metrics.figures import facts
from mathturn_gym.episodes.returns import Estimator, advantages
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import (
    InvalidValueError,
    MissingDependencyError,
    check_float,
    check_int,
    install_extra,
    raise_unknown_name,
)
from mathturn_gym.neighbors.episodes import ProblemIndex, TextEpisode, chosen_problems, completion_of
from mathturn_gym.neighbors.export import to_trl, trl_advantages
from mathturn_gym.neighbors.require import require
from mathturn_gym.problems import ProblemsLike
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Completion, Episode, Ids, Policy
from mathturn_gym.wrappers.policy import CausalLMPolicy

_INSTALL: Final = install_extra("trl")
require("trl", "1.16", "2", _INSTALL)
try:
    from accelerate.utils import gather_object
    from datasets import Dataset
    from trl import GRPOTrainer
except ImportError as error:
    raise MissingDependencyError(f"TRL cannot be loaded ({error}): {_INSTALL}") from error


class TurnRollout:
    """A `rollout_func` for `GRPOTrainer`: plays the problems of TRL's prompts in the environment.

    Where the model is whole in this process it is sampled by `CausalLMPolicy`, which keeps keys and values between turns and
    gives the log-probs of what it sampled. With vLLM, and with sharded models (FSDP, DeepSpeed), TRL's own generation is
    called, once a turn; ranks whose episodes end early wait for the others.

        rollout = TurnRollout(num_turns=4)
        GRPOTrainer(model, args=args, train_dataset=rollout.dataset("lins", 1000), rollout_func=rollout,
                    reward_funcs=rollout.episode_return)

    Args:
        env_id: Environment id.
        discount: Of the returns, per turn.
        num_envs: The most episodes at once; None plays all of a batch.
        policy: Makes the policy that plays, of the trainer; None chooses as above.
        **keywords: Of `gym.make`, but for `problems` and `tokenizer`, which data set and trainer decide.

    Attributes:
        episodes: The episodes of the last call, `group` set: its place in TRL's global batch over `num_generations`.

    Raises:
        InvalidValueError: a value outside its range, or a keyword that is not the caller's to give.
    """

    def __init__(
        self,
        env_id: str = "MathMultiTurnUntilCorrect-v0",
        *,
        discount: float = 1.0,
        num_envs: int | None = None,
        policy: Callable[[Any], Policy] | None = None,
        **keywords: Any,
    ) -> None:
        self.discount = check_float("discount", discount, low=0.0, high=1.0)
        self._num_envs = None if num_envs is None else check_int("num_envs", num_envs, low=1)
        self._config, self._make_policy = _checked_config(env_id, keywords), policy
        self._problems = ProblemIndex()
        self._env: gym.vector.VectorEnv[Any, Any, Any] | None = None
        self._policy: tuple[Any, CausalLMPolicy] | None = None
        self._calls: tuple[tuple[str, int], int] = ("", 0), 0
        self.episodes: list[Episode] = []

    def dataset(self, problems: ProblemsLike, size: int | None = None, seed: int = 0) -> Dataset:
        """A data set for the trainer, a row per problem; this rollout knows the problems from then on.

        Args:
            problems: See `load_problems`.
            size: How many different problems; None takes all of a list.
            seed: Of the stream of a source that has no end.

        Returns:
            Columns `prompt` (one message of the user's, which carries the problem's id as well) and `problem_id`.

        Raises:
            InvalidValueError: a source without end and no size, or one that has fewer problems.
        """
        return _dataset(self._problems, problems, size, seed)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Plays one episode per prompt; what `GRPOTrainer` calls.

        Args:
            prompts: This process's prompts, each as often as TRL repeats it.
            trainer: The trainer.

        Returns:
            See `mathturn_gym.neighbors.export.to_trl`.

        Raises:
            InvalidValueError: a prompt that no known problem has.
        """
        ids = [self._problems.id_of(prompt) for prompt in prompts]
        env = self._environment(len(ids), trainer)
        # Ranks play different indices of one plan: with equal indices they would sample equal completions.
        first = trainer.accelerator.process_index * len(ids)
        with self._playing(trainer) as policy:
            played = collect(
                env,
                policy,
                len(ids),
                seed=self._seed(trainer),
                first_index=first,
                problem_ids=ids,
                discount=self.discount,
            )
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        self.episodes = [dataclasses.replace(episode, group=str(episode.index // size)) for episode in played]
        tokenizer = trainer.processing_class
        # TRL takes no completion without an id: a masked one stands for it.
        filler = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        return to_trl(self.episodes, discount=self.discount, empty_id=filler, missing_logprobs=True)

    def episode_return(
        self, completions: Sequence[Any], episode_return: Sequence[float], log_metric: Any = None, **_: Any
    ) -> list[float]:
        """The reward function: each episode's return. Logs the accuracy by turn beside it."""
        if log_metric is not None and self.episodes:
            first = [facts(episode).first_success for episode in self.episodes]
            for turn in range(max(episode.num_turns for episode in self.episodes)):
                log_metric(f"acc@{turn + 1}", float(np.mean([at is not None and at <= turn for at in first])))
        return [float(value) for value in episode_return]

    # ---- inside

    def _environment(self, episodes: int, trainer: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
        places = min(episodes, self._num_envs or episodes)
        # Evaluation batches are of another size.
        if self._env is None or self._env.num_envs != places:
            made: Any = self._config.make(num_envs=places, problems=self._problems, tokenizer=trainer.processing_class)
            self._env = made
        return self._env

    def _seed(self, trainer: Any) -> int:
        """A seed that no other call of the run has, and that the same call of a resumed run has again."""
        place = ("train" if trainer.model.training else "eval", int(trainer.state.global_step))
        # A step generates again for steps_per_generation and for evaluation: the count keeps their seeds apart.
        last, count = self._calls
        self._calls = place, count + 1 if place == last else 0
        return derive_seed("trl", int(trainer.args.seed), *place, self._calls[1])

    @contextmanager
    def _playing(self, trainer: Any) -> Iterator[Policy]:
        """The policy, while it plays."""
        if self._make_policy is not None:
            yield self._make_policy(trainer)
            return
        env = self._env
        assert env is not None
        if trainer.use_vllm or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or _asks_for_more(trainer.args):
            policy = _TrainersGeneration(trainer)
            with policy.of_length(env.single_action_space.max_length):  # type: ignore[attr-defined]
                yield policy
                policy.wait_for_others()
            return
        # In the precision of training: log-probs of sampling and of the update then come from one arithmetic.
        with trainer.accelerator.autocast():
            yield self._own_policy(trainer)

    def _own_policy(self, trainer: Any) -> CausalLMPolicy:
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        # Caches belong to one model: another one needs a policy of its own.
        if self._policy is None or self._policy[0] is not model:
            args = trainer.args
            policy = CausalLMPolicy(
                model,
                trainer.processing_class,
                temperature=args.temperature,
                top_p=args.top_p,
                top_k=args.top_k or 0,
                min_p=args.min_p or 0.0,
                stop_ids=trainer.eos_token_ids,
            )
            self._policy = model, policy
        return self._policy[1]


def _asks_for_more(args: Any) -> bool:
    """True where the trainer's settings ask for sampling that `CausalLMPolicy` does not do."""
    return args.repetition_penalty != 1.0 or bool(args.generation_kwargs)


class _TrainersGeneration:
    """TRL's own generation as a policy: vLLM, or a model that is sharded over the ranks.

    Every rank must call it equally often and with equally many contexts (TRL hands out results by rank times count), so the
    ranks agree on the count before every call, and fill up with a context of one id.
    """

    scheduler: Final = "batched"

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._ends = set(trainer.eos_token_ids)

    @contextmanager
    def of_length(self, max_tokens: int) -> Iterator[None]:
        """Limits the ids per turn: TRL's `max_completion_length` is a limit for all turns together."""
        trainer = self._trainer
        places = [(trainer.generation_config, "max_new_tokens")] if hasattr(trainer, "generation_config") else []
        if trainer.use_vllm:
            places.append((trainer.vllm_generation, "max_completion_length"))
        before = [getattr(holder, name) for holder, name in places]
        for holder, name in places:
            setattr(holder, name, max_tokens)
        try:
            yield
        finally:
            for (holder, name), value in zip(places, before, strict=True):
                setattr(holder, name, value)

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Continues contexts; samples are the engine's own, whatever the seeds."""
        found, logprobs = self._generate([context.tolist() for context in contexts], self._most(len(contexts)))
        version = int(self._trainer.state.global_step)
        rows = zip(found, logprobs, max_tokens, strict=True)
        return [completion_of(ids, values, limit, self._ends, version) for ids, values, limit in rows]

    def wait_for_others(self) -> None:
        """Takes part in the generation of ranks that still play."""
        while width := self._most(0):
            self._generate([], width)

    def _most(self, contexts: int) -> int:
        """The most contexts that any rank has to continue now."""
        several = self._trainer.accelerator.num_processes > 1
        return max(gather_object([contexts])) if several else contexts

    def _generate(self, prompts: list[list[int]], width: int) -> tuple[list[list[int]], list[Any]]:
        trainer = self._trainer
        filler = [trainer.eos_token_ids[0]]
        filled = [*prompts, *([filler] * (width - len(prompts)))]
        ids, logprobs = trainer._generate_single_turn(filled, None, {}, num_generations=1)
        count = len(prompts)
        return ids[:count], [None] * count if logprobs is None else logprobs[:count]


class TurnLevelGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` with an advantage per turn instead of one per episode.

    Every sampled id has the advantage of its turn, by an estimator of `mathturn_gym.episodes.returns`; the default compares a turn's
    return with what the other episodes of its group made of theirs, and is unbiased. `scale_rewards` and reward functions of
    one's own have no part in it: rewards are the environment's (`reward_terms` adds to them).

    Args:
        model: As for `GRPOTrainer`.
        args: As for `GRPOTrainer`.
        train_dataset: From `rollout.dataset`, or one whose prompts are those of its problems.
        rollout: Plays the episodes.
        estimator: See `mathturn_gym.episodes.returns.advantages` (all but "gae", which needs a critic).
        scale_advantages: Divide a batch's advantages by their standard deviation over all turns.
        **keywords: Of `GRPOTrainer`.

    Raises:
        InvalidValueError: an unknown estimator, or a keyword that leaves turn credit no meaning.
    """

    def __init__(
        self,
        model: Any,
        args: Any = None,
        train_dataset: Any = None,
        *,
        rollout: TurnRollout,
        estimator: Estimator = "turn_rloo",
        scale_advantages: bool = False,
        **keywords: Any,
    ) -> None:
        allowed = [name for name in get_args(Estimator) if name != "gae"]
        if estimator not in allowed:
            raise_unknown_name("estimator", estimator, allowed)
        for name in ("reward_funcs", "rollout_func", "environment_factory", "tools"):
            if name in keywords:
                raise InvalidValueError(
                    f"{name} must not be given to TurnLevelGRPOTrainer: rewards and rollouts are the environment's"
                    " (rollout=TurnRollout(reward_terms=…)); GRPOTrainer itself takes it"
                )
        self._rollout, self._estimator, self._scale = rollout, estimator, scale_advantages
        super().__init__(
            model=model,
            reward_funcs=[rollout.episode_return],
            args=args,
            train_dataset=train_dataset,
            rollout_func=rollout,
            **keywords,
        )

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        width = out["completion_ids"].shape[1]
        values = torch.from_numpy(trl_advantages(self._rollout.episodes, self._turn_advantages(), width=width))
        out["advantages"] = values.to(out["completion_ids"].device)
        return out

    def _turn_advantages(self) -> list[Any]:
        """This process's episodes' advantages, among the episodes of all processes: a group may lie across them."""
        own = self._rollout.episodes
        # TRL shards prompts over ranks, not groups.
        everyone = gather_object(own) if self.accelerator.num_processes > 1 else own
        found = advantages(everyone, self._estimator, discount=self._rollout.discount)
        if self._scale:
            # One number for all: dividing group by group would weigh a problem by how alike its episodes are.
            deviation = float(np.concatenate(found).std()) + 1e-8
            found = [values / np.float32(deviation) for values in found]
        first = self.accelerator.process_index * len(own)
        return found[first : first + len(own)]


class AnswerEnvironment:
    """The environment as TRL's `environment_factory` wants it: a problem, and a tool by which the model submits answers.

    Made by `AnswerEnvironments`. The model writes tool calls in its own format, TRL parses them; what `submit_answer` says
    goes back to the model as the tool's result. Its public methods are the tools: there is one.
    """

    def __init__(self, make: Callable[[], TextEpisode], problems: ProblemIndex) -> None:
        self._make, self._problems = make, problems
        self._episode: TextEpisode | None = None

    def reset(self, prompt: Any = None, problem_id: str | None = None, **_: Any) -> None:
        """Begins an episode on the row's problem.

        Args:
            prompt: The row's prompt.
            problem_id: The row's problem; without it the prompt says which it is.

        Raises:
            InvalidValueError: no known problem is meant.
        """
        chosen = self._problems.id_of(prompt) if problem_id is None else problem_id
        if self._episode is None:
            self._episode = self._make()
        self._episode.begin(chosen)

    def submit_answer(self, answer: str) -> str:
        r"""Submits an answer to the problem and tells whether it is right.

        Args:
            answer: The answer alone, in plain text or LaTeX, for example 4 or \frac{1}{2}.

        Returns:
            Whether the answer is right, and whether there is another try.
        """
        episode = self._episode
        if episode is None or episode.over:
            return "The episode is over: no further answer is taken."
        feedback = episode.answer(f"\\boxed{{{answer}}}")
        right = episode.solved_at == len(episode.rewards) - 1
        said = feedback or ("Right." if right else "Wrong.")
        return f"{said} The episode is over." if episode.over else said

    def get_reward(self) -> float:
        """The return of the episode; one without any answer has played a turn without an answer."""
        episode = self._episode
        assert episode is not None
        if not episode.rewards:
            episode.answer("")
        return episode.value


class AnswerEnvironments:
    """An `environment_factory` for `GRPOTrainer`: the model answers by calling a tool.

        factory = AnswerEnvironments(num_turns=3)
        GRPOTrainer(model, args=args, train_dataset=factory.dataset("lins", 1000), environment_factory=factory)

    Needs a chat template that knows tools. TRL gives the whole episode one advantage; `TurnRollout` needs no tools and, with
    `TurnLevelGRPOTrainer`, has credit per turn.

    Args:
        env_id: Environment id.
        discount: Of the return that is the reward, per turn.
        **keywords: Of `gym.make`, but for `problems` and `tokenizer`: answers are text here.

    Raises:
        InvalidValueError: a value outside its range, or a keyword that is not the caller's to give.
    """

    def __init__(self, env_id: str = "MathMultiTurnUntilCorrect-v0", *, discount: float = 1.0, **keywords: Any) -> None:
        self._discount = check_float("discount", discount, low=0.0, high=1.0)
        self._config = _checked_config(env_id, keywords)
        self._problems = ProblemIndex()

    def dataset(self, problems: ProblemsLike, size: int | None = None, seed: int = 0) -> Dataset:
        """A data set for the trainer; see `TurnRollout.dataset`."""
        return _dataset(self._problems, problems, size, seed)

    def __call__(self) -> AnswerEnvironment:
        """One environment; TRL makes as many as a batch has episodes, and uses them again."""
        return AnswerEnvironment(self._make, self._problems)

    def _make(self) -> TextEpisode:
        env: Any = self._config.make(problems=self._problems)
        return TextEpisode(env.unwrapped, self._discount)


def _checked_config(env_id: str, keywords: Mapping[str, Any]) -> EnvConfig:
    """The environment of an id and a user's keywords; a mistake shows here, not in the first step."""
    for name, whose in (("problems", "the data set's: .dataset(problems) makes one"), ("tokenizer", "the trainer's")):
        if name in keywords:
            raise InvalidValueError(f"{name} must not be given: it is {whose}")
    config = EnvConfig(env_id, **keywords)
    config.make().close()
    return config


def _dataset(index: ProblemIndex, problems: ProblemsLike, size: int | None, seed: int) -> Dataset:
    """Rows of problems, which are added to the index; the message carries the id, because TRL passes nothing else on."""
    found = chosen_problems(problems, size, seed)
    index.add(found)
    messages = [[{"role": "user", "content": problem.prompt, "problem_id": problem.id}] for problem in found]
    return Dataset.from_dict({"prompt": messages, "problem_id": [problem.id for problem in found]})
