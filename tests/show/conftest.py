"""Episodes worth looking at, and hostile ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Completion, Episode, Ids, Problem, Status, Verdict

PROBLEMS = [
    Problem(
        "algebra/1", "Find the sum of the roots of $x^2 - 5x + 6 = 0$.", "5", metadata={"family": "algebra", "level": 3}
    ),
    Problem(
        "calculus/2",
        r"Evaluate $\displaystyle\int_0^{\pi/2} \sin^2 x\,dx$.",
        r"\frac{\pi}{4}",
        metadata={"family": "calculus", "level": 4},
    ),
    Problem("counting/3", "In how many ways can 3 people queue?", "6", metadata={"family": "counting", "level": 1}),
]
SAID = {
    "algebra/1": [r"By Vieta $-\frac{b}{a} = -5$: \boxed{-5}", r"$$x^2-5x+6=(x-2)(x-3)$$ so \boxed{5}"],
    "calculus/2": [
        r"Half of $\frac\pi2$ twice: \boxed{\frac{\pi}{2}}",
        r"\[\frac12\cdot\frac\pi2\] gives \boxed{\frac{\pi}{4}}",
    ],
    "counting/3": ["there are many", r"$3! = 6$, so \boxed{6}"],
}

HOSTILE = [
    "<script>window.owned=1</script><img src=x onerror='window.owned=2'><svg onload=window.owned=3>",
    "</script></style><style>*{display:none}</style><iframe src=http://example.com></iframe> javascript:window.owned=4",
    "\u202egnp.exe\u202c \u2066abc\u2069 zero\u200bwidth \ufeffmark \U000e0041 tag \x1b[31mred\x1b[0m\x07 nul\x00 \ud800",
    r"$\href{javascript:window.owned=5}{click}$ \(\includegraphics{http://example.com/x.png}\) $\rule{900em}{900em}$",
    r"$$\def\a{\a\a}\a$$ $\kern-500em hidden$ $\htmlStyle{position:fixed}{x}$ \boxed{\color{white}{white}}",
    "$" + "{" * 900 + "}" * 900 + "$ " + "\\boxed{" * 400,
    "A" * 1_000_000,
    "\u202e" * 100_000,
    "`${window.owned=6}` {{7*7}} %3Cscript%3E &lt;script&gt; \\u003cscript\\u003e",
]


class Speaker:
    """Says what is in `SAID`, the wrong thing at first on every other episode, with log-probs and entropies."""

    def __init__(self, dialogue: Dialogue, skill: float) -> None:
        self.dialogue, self.skill = dialogue, skill

    def complete(self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Any = None) -> list[Completion]:
        return [self._say(c, m, s) for c, m, s in zip(contexts, max_tokens, seeds, strict=True)]

    def _say(self, context: Ids, most: int, seed: int) -> Completion:
        rng = np.random.default_rng(seed)
        text = self.dialogue.decode(context)
        said = next(SAID[p.id] for p in PROBLEMS if p.prompt in text)[int(rng.random() < self.skill)]
        ids = np.array([*self.dialogue.encode(said), self.dialogue.end_of_turn[-1]])[:most]
        logprobs = np.log1p(-(rng.random(len(ids)) ** 5) * 0.999).astype(np.float32)
        return Completion(ids, logprobs, version_start=3, entropies=(-logprobs * 0.7).astype(np.float32))


def play(skill: float, *, episodes: int = 24, seed: int = 0) -> list[Episode]:
    """Episodes of a made-up policy in the real environment."""
    dialogue = Dialogue("builtin")
    env = gym.make_vec(
        "MathMultiTurnUntilCorrect-v0",
        num_envs=4,
        vectorization_mode="vector_entry_point",
        problems=PROBLEMS,
        num_turns=3,
        max_completion_tokens=120,
        gold_in_info=True,
    )
    ids = [problem.id for problem in PROBLEMS]
    played = collect(env, Speaker(dialogue, skill), episodes, seed=seed, group_size=4, problem_ids=ids)
    env.close()
    return played


@pytest.fixture(scope="session")
def before() -> list[Episode]:
    """A weak policy's episodes."""
    return play(0.3)


@pytest.fixture(scope="session")
def after() -> list[Episode]:
    """A stronger policy's, on the same problems."""
    return play(0.8, seed=1)


@pytest.fixture(scope="session")
def hostile() -> list[Episode]:
    """Episodes that try everything, in every field that can hold a text."""
    return [_hostile(number, text) for number, text in enumerate(HOSTILE)]


def _hostile(number: int, text: str) -> Episode:
    verdicts = (
        Verdict(Status.WRONG, text[:300], answer=text[:2000], span=(0, min(5, len(text))), tier=text[:50]),
        Verdict(Status.RIGHT),
    )
    base = synthetic_episode(0, number, [3, 4], vocab_size=400)
    return replace(
        base,
        problem_id=text[:200],
        prompt=text,
        responses=(text, text),
        feedbacks=(text, ""),
        gold=(text[:3000],),
        verdicts=verdicts,
        metadata={"family": text[:80], "level": text[:20], text[:40]: text[:200]},
        group=text[:20],
        token_values={text[:20]: np.ones(len(base.ids), np.float32)},
    )


@pytest.fixture(scope="session")
def shots() -> Path | None:
    """Where screenshots go, if anybody wants them: MATHTURN_SHOTS names a folder."""
    folder = os.environ.get("MATHTURN_SHOTS")
    if folder is None:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
