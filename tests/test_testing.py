from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.testing import RandomPolicy, ScriptedPolicy, check_policy, make_tokenizer
from mathturn_gym.types import Completion

DIALOGUE = Dialogue("builtin")


def test_a_script_goes_on_with_the_turns() -> None:
    policy = ScriptedPolicy(["one", "two"], DIALOGUE)
    context, said = DIALOGUE.prompt_ids("x"), []
    for turn in range(3):
        (completion,) = policy.complete([context], max_tokens=[50])
        said.append(DIALOGUE.text(completion.ids))
        context = np.concatenate([context, completion.ids, DIALOGUE.feedback_ids("no", turn, completion.ids)])
    assert said == ["one", "two", "two"]


def test_a_script_is_cut_off_by_its_budget() -> None:
    (completion,) = ScriptedPolicy(["a long answer"], DIALOGUE).complete([DIALOGUE.prompt_ids("x")], max_tokens=[2])
    assert (len(completion), completion.truncated) == (2, True)


@pytest.mark.parametrize("script", [[], "text", ""])
def test_scripts_are_checked(script: Any) -> None:
    with pytest.raises(InvalidValueError, match="script must be texts or a function"):
        ScriptedPolicy(script, DIALOGUE)


def test_random_policy_is_uniform_with_the_exact_logprob() -> None:
    policy = RandomPolicy(10, end_of_turn=3)
    completions = policy.complete([np.zeros(1, np.int64)] * 500, max_tokens=[20] * 500, seeds=list(range(500)))
    ids = np.concatenate([c.ids for c in completions])
    assert np.bincount(ids, minlength=10).min() > 0.07 * len(ids)
    assert np.allclose(np.concatenate([c.logprobs for c in completions]), -np.log(10))
    assert all((c.ids[:-1] != 3).all() and c.truncated == (c.ids[-1] != 3) for c in completions)
    check_policy(policy, 10)


def test_the_contract_of_policies_can_be_broken() -> None:
    class Wrong(RandomPolicy):
        def complete(self, contexts: Any, **kwargs: Any) -> list[Completion]:
            found = super().complete(contexts, **kwargs)
            return [Completion(np.full(9, 7), np.zeros(9, np.float32)), *found[1:]]

    class Moody(RandomPolicy):
        def complete(self, contexts: Any, *, max_tokens: Any, seeds: Any = None) -> list[Completion]:
            return super().complete(contexts, max_tokens=max_tokens, seeds=[s + len(contexts) for s in seeds])

    with pytest.raises(AssertionError, match="9 ids for a budget of 8"):
        check_policy(Wrong(10), 10)
    with pytest.raises(AssertionError, match="samples other ids when it is alone"):
        check_policy(Moody(10), 10)
    with pytest.raises(AssertionError, match="outside"):
        check_policy(RandomPolicy(50), 10)


def test_tokenizers_are_deterministic_lossless_and_differ_by_seed() -> None:
    text = "héllo 你好 \\boxed{3} 💡 \x00\n"
    first, again, other = make_tokenizer(seed=1), make_tokenizer(seed=1), make_tokenizer(seed=2)
    assert first(text)["input_ids"] == again(text)["input_ids"] != other(text)["input_ids"]
    for tokenizer in (first, other):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
