"""`collect` and `acollect`: one plan, three schedulers."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import gymnasium as gym

from mathturn_gym.episodes.rollout._recorder import AsyncPolicy, EpisodePlan, Scheduler, StreamingPolicy
from mathturn_gym.episodes.rollout._schedulers import (
    Progress,
    env_slots,
    play_asyncio,
    play_batched,
    play_streaming,
    stream_asyncio,
)
from mathturn_gym.errors import InvalidValueError, RunError, check_int, raise_unknown_name, shown
from mathturn_gym.types import Episode, Policy

VectorEnv: TypeAlias = gym.vector.VectorEnv[Any, Any, Any]

_NEEDS: Final = {
    "batched": ("complete",),
    "streaming": ("submit", "advance", "cancel", "release"),
    "async": ("acomplete",),
}


def collect(
    env: VectorEnv,
    policy: Policy | StreamingPolicy | AsyncPolicy,
    episodes: int,
    *,
    seed: int = 0,
    first_index: int = 0,
    group_size: int = 1,
    discount: float = 1.0,
    problem_ids: Sequence[str] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    scheduler: Scheduler | Literal["auto"] = "auto",
) -> list[Episode]:
    """Plays episodes in a vector environment, refilling each place as soon as its episode ends.

    Args:
        env: From `gym.make_vec`, in any autoreset mode (`collect` chooses every problem itself).
        policy: Asked with the contexts of running episodes, whatever their lengths.
        episodes: How many to play.
        seed: With an episode's index, decides its problem and its samples.
        first_index: Index of the first episode: `collect(…, 10, first_index=10)` continues `collect(…, 10)`.
        group_size: Consecutive episodes that play the same problem (with samples of their own).
        discount: Per turn, for the episodes' `returns`.
        problem_ids: Play these, episode i on `problem_ids[(i // group_size) % len]`, not the stream of `seed`.
        on_episode: Called with each episode as it ends (for progress, or to save it).
        scheduler: How the policy is asked (see `mathturn_gym.episodes.rollout`). "auto" takes what the policy declares as its
            `scheduler`, and "batched" for a policy that declares nothing, or a streaming one where the environments are
            in other processes or behind a vector wrapper. The episodes are the same in every case.

    Returns:
        The episodes in order of their index.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
        RunError: the policy, the verifier or a function of the user's cannot go on (`PolicyError`, `VerifierError`,
            `UserFunctionError`); the error's `finished` holds the episodes that had ended.
    """
    indices = _indices(episodes, first_index)
    plan = EpisodePlan(seed, group_size, problem_ids, discount)
    chosen = _choose(scheduler, policy, env)
    check_tokenizer(env, policy)
    done: dict[int, Episode] = {}

    def keep(episode: Episode) -> None:
        done[episode.index] = episode
        if on_episode is not None:
            on_episode(episode)

    try:
        if chosen == "batched":
            play_batched(env, cast("Policy", policy), plan, indices, keep)
        else:
            slots = env_slots(env, f"scheduler {chosen!r}")
            if chosen == "streaming":
                play_streaming(slots, cast("StreamingPolicy", policy), plan, indices, keep)
            else:
                play_asyncio(slots, cast("AsyncPolicy", policy), plan, indices, keep)
            env.reset()  # its environments were played one by one, which its own bookkeeping has not seen
    # Hours of episodes must not be lost with the one that failed: the error carries them.
    except RunError as error:
        error.finished = tuple(done[index] for index in sorted(done))
        raise
    return [done[index] for index in indices]


async def acollect(
    env: VectorEnv,
    policy: AsyncPolicy,
    episodes: int,
    *,
    seed: int = 0,
    first_index: int = 0,
    group_size: int = 1,
    discount: float = 1.0,
    problem_ids: Sequence[str] | None = None,
    max_waiting: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncGenerator[Episode, None]:
    """The asyncio form of `collect`: yields the same episodes, each as it finishes.

    Leaving the loop early (`aclosing`, or canceling the task) cancels what runs, its requests included. Where the policy
    fails, episodes that had finished are still yielded, then the error is raised.

    Args:
        env: As for `collect`, with environments in this process; `env.num_envs` episodes run at the same time.
        policy: Asked one context at a time.
        episodes: How many to play.
        seed: See `collect`.
        first_index: See `collect`.
        group_size: See `collect`.
        discount: See `collect`.
        problem_ids: See `collect`.
        max_waiting: Back-pressure: with this many finished episodes not yet taken, the others wait; None takes
            `env.num_envs`.
        on_progress: Called as each episode finishes.

    Yields:
        Episodes, in the order in which they finish.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
        RunError: the policy, the verifier or a function of the user's cannot go on.
    """
    indices = _indices(episodes, first_index)
    plan = EpisodePlan(seed, group_size, problem_ids, discount)
    _choose("async", policy, env)
    check_tokenizer(env, policy)
    slots = env_slots(env, "acollect()")
    waiting = check_int("max_waiting", len(slots) if max_waiting is None else max_waiting, low=1)
    stream = stream_asyncio(slots, policy, plan, indices, max_waiting=waiting, on_progress=on_progress)
    async with aclosing(stream):
        async for episode in stream:
            yield episode
    env.reset()  # as in `collect`


def _indices(episodes: int, first_index: int) -> range:
    first = check_int("first_index", first_index, low=0)
    return range(first, first + check_int("episodes", episodes, low=0))


def _choose(scheduler: str, policy: Any, env: VectorEnv) -> str:
    """The scheduler: the one asked for, or the one that the policy declares, as far as the environment allows it.

    Raises:
        InvalidValueError: there is none of that name, the policy cannot be asked so, or the environment is a single one.
    """
    if getattr(env, "num_envs", None) is None:
        raise InvalidValueError(
            f"env must be a vector environment, got {env!r}: gym.make_vec(ID, num_envs=n) makes one, n = 1 included"
        )
    declared = str(getattr(policy, "scheduler", "batched"))
    chosen = declared if scheduler == "auto" else scheduler
    if chosen not in _NEEDS:
        field = "scheduler" if scheduler != "auto" else f"scheduler of policy {type(policy).__name__}"
        raise_unknown_name(field, chosen, [*get_args(Scheduler), *(["auto"] if scheduler != "auto" else [])])
    # Environments in other processes can only be stepped all at once.
    if scheduler == "auto" and chosen == "streaming" and not hasattr(env, "envs"):
        chosen = "batched"
    missing = [name for name in _NEEDS[chosen] if not callable(getattr(policy, name, None))]
    if isinstance(policy, str):
        raise InvalidValueError(
            f"policy must be an object, got the name {policy!r}: mathturn_gym.wrappers.load_policy({policy!r}) loads it"
        )
    if missing:
        raise InvalidValueError(
            f"scheduler {chosen!r} needs a policy with {', '.join(f'{name}()' for name in missing)}, which {policy!r} does"
            f" not have; it declares {declared!r}"
        )
    return chosen


# Pairs of tokenizers that were compared: two vocabularies of 150,000 take .1 s, and training collects often.
_SAME: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def check_tokenizer(env: Any, policy: Any) -> None:
    """Refuses a policy whose tokenizer gives other ids to the same tokens than the environment's.

    Ids are all that the two exchange, so nothing else would notice: with six ids of the built-in tokenizer swapped,
    acc@3 fell from .672 to .234 without a word. A policy without a `tokenizer`, and environments in other processes,
    are not checked.

    Args:
        env: A vector environment.
        policy: Any policy.

    Raises:
        InvalidValueError: an id of one tokenizer is another token of the other; the first one is shown.
    """
    envs = getattr(getattr(env, "unwrapped", env), "envs", None)
    dialogue = getattr(envs[0].unwrapped, "dialogue", None) if envs else None
    ours, theirs = getattr(dialogue, "tokenizer", None), getattr(policy, "tokenizer", None)
    # Policies without a tokenizer (random, scripted) take any ids.
    if ours is None or theirs is None or ours is theirs:
        return
    before = _SAME.get(ours)
    if before is not None and before() is theirs:
        return
    if not all(callable(getattr(one, "get_vocab", None)) for one in (ours, theirs)):
        return
    of_env, of_policy = ours.get_vocab(), theirs.get_vocab()
    if of_env != of_policy:
        token = min(
            (token for token in of_env.keys() | of_policy.keys() if of_env.get(token) != of_policy.get(token)),
            key=lambda token: (min(of_env.get(token, 1 << 62), of_policy.get(token, 1 << 62)), token),
        )
        raise InvalidValueError(
            f"the environment's tokenizer is not the policy's: {len(of_env):,} tokens against {len(of_policy):,}, and"
            f" {shown(token)} is id {of_env.get(token)} here and {of_policy.get(token)} there; pass tokenizer=policy.tokenizer"
            " when you make the environment (on the command line, leave --tokenizer out)"
        )
    _SAME[ours] = weakref.ref(theirs)
