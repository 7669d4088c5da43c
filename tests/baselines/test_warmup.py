from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mathturn_gym.baselines.reinforce import make_vec
from mathturn_gym.baselines.tiny import TINY_PATH, train_tokenizer
from mathturn_gym.baselines.warmup import MIXTURE, WarmupProgress, warmup, warmup_dialogue
from mathturn_gym.dialogue import Dialogue
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.metrics import summarize
from mathturn_gym.problems import load_problems, split_of
from mathturn_gym.rollout import collect
from mathturn_gym.wrappers.policy import CausalLMPolicy


def accuracy(policy: CausalLMPolicy, problems: str, name: str, num_turns: int, episodes: int) -> float:
    env = make_vec(
        "MathMultiTurnUntilCorrect-v0",
        64,
        problems=problems,
        num_turns=num_turns,
        max_completion_tokens=8,
        feedback="hint",
    )
    value = summarize(collect(env, policy, episodes, seed=3), resamples=10).figures[name].value
    env.close()
    assert value is not None
    return value


def test_a_small_run_learns_the_format_and_loads(tmp_path: Path) -> None:
    losses: list[WarmupProgress] = []
    path = warmup(tmp_path / "warm", steps=60, on_progress=losses.append)
    assert [p.step for p in losses] == list(range(1, 61))
    assert losses[-1].loss < 0.3 * losses[0].loss
    policy = CausalLMPolicy.from_pretrained(path)
    dialogue = Dialogue(policy.tokenizer)
    prompts = [dialogue.prompt_ids(load_problems("lins:test").get(0, i).prompt) for i in range(64)]
    answers = [dialogue.text(c.ids) for c in policy.complete(prompts, max_tokens=[8] * 64, seeds=range(64))]
    assert sum(answer.startswith("\\boxed{") and answer.endswith("}") and len(answer) == 9 for answer in answers) > 40


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    folders = [warmup(tmp_path / name, seed=seed, steps=2) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, again, other = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}
    assert set(first) == {file.name for file in TINY_PATH.iterdir()}
    assert torch.get_num_threads() == threads


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InvalidValueError, match="output_dir"):
        warmup(tmp_path, steps=1)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("batch_size", 0), ("learning_rate", -1.0)])
def test_values_outside_their_range_are_refused_by_name(tmp_path: Path, field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=field):
        warmup(tmp_path, **{field: value})  # type: ignore[arg-type]


def test_only_right_answers_and_blind_guesses_are_learned_and_only_of_the_train_split() -> None:
    dialogue = Dialogue(train_tokenizer())
    sources = [load_problems(f"{name}:train") for name, _ in MIXTURE]
    turns, families = [], set()
    for seed in range(300):
        ids, mask = warmup_dialogue(np.random.default_rng(seed), dialogue, sources)
        text = dialogue.decode(ids)
        question = text[len("<|im_start|>user\n") : text.index("<|im_end|>")]
        assert question.startswith("Guess") or split_of(question) == "train"
        learned = [dialogue.decode(part) for part in np.split(ids, np.flatnonzero(np.diff(mask)) + 1)[1::2]]
        # The mask is True on whole answers, their end of turn included, and on nothing else.
        assert all(len(a) == len("\\boxed{5}<|im_end|>") and a.startswith("\\boxed{") for a in learned)
        if question.startswith("Guess"):
            assert len(learned) == 3
        else:
            assert len(learned) == 1
            assert text.endswith(learned[0])
            assert _right(question, int(learned[0][7]))
        families.add(question.split()[0])
        turns.append(text.count("<|im_start|>assistant"))
    assert families == {"Solve", "What", "Guess"}
    assert set(turns) == {1, 2, 3, 4}


def test_the_shipped_checkpoint_has_the_format_and_is_weak() -> None:
    policy = CausalLMPolicy.from_pretrained(TINY_PATH)
    assert policy.model.dtype == torch.float32
    assert 0.3 < accuracy(policy, "lins:test", "acc@1", 1, 512) < 0.45
    # Guessing blindly among ten digits for three turns solves 0.27.
    assert 0.2 < accuracy(policy, "guess8:test", "acc@3", 3, 512) < 0.34


def _right(question: str, answer: int) -> bool:
    if question.startswith("What is "):
        a, b = question.removeprefix("What is ").removesuffix("?").split("+")
        return int(a) + int(b) == answer
    left, c = question.removeprefix("Solve ").removesuffix(" for x.").split("=")
    a, b = left.split("x+")
    return int(a) * answer + int(b) == int(c)
