from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import warmup as module
from tiny import Shape, make_tiny_model, train_tokenizer
from typer.testing import CliRunner
from warmup import (
    CALCULATOR,
    TINY,
    WORLD,
    Part,
    WarmupProgress,
    first_try_accuracy,
    warmup,
    warmup_dialogue,
)

from mathturn_gym.cli.app import app
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.problems import ProblemSource, load_problems
from mathturn_gym.problems.base import split_of
from mathturn_gym.types import Problem
from mathturn_gym.wrappers.policy import CausalLMPolicy


def accuracy(policy: CausalLMPolicy, problems: str, name: str, num_turns: int, episodes: int) -> float:
    config = EnvConfig(train=problems, num_turns=num_turns, max_completion_tokens=8, feedback="hint")
    env: Any = config.make("train", 64)
    value = summarize(collect(env, policy, episodes, seed=3)).figures[name].value
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
    assert set(first) == {file.name for file in BUILTIN_PATH.iterdir()}
    assert torch.get_num_threads() == threads


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InvalidValueError, match="output_dir"):
        warmup(tmp_path, steps=1)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("field", "value"), [("steps", 0), ("batch_size", 0), ("learning_rate", -1.0)])
def test_values_outside_their_range_are_refused_by_name(tmp_path: Path, field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=field):
        warmup(tmp_path / "warm", **{field: value})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(_progress: WarmupProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warmup(tmp_path / "warm", steps=3, on_progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_a_kill_while_the_folder_is_written_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """It appears with all of its files, at once."""
    folder, steps = tmp_path / "warm", []

    def killed(source: Path, target: Path) -> None:
        steps.append((target, {file.name for file in source.iterdir()}))
        raise KeyboardInterrupt

    if there:
        folder.mkdir()
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        warmup(folder, steps=1)
    assert [target for target, _ in steps] == [folder]
    assert list(tmp_path.iterdir()) == [], "half a folder"
    monkeypatch.undo()
    assert {file.name for file in warmup(folder, steps=1).iterdir()} == steps[0][1] >= {"config.json", "tokenizer.json"}


def test_the_world_learns_and_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    small = dataclasses.replace(WORLD, steps=12, batch_size=8, groups=2, shape=Shape(32, 1, 2, 64))
    losses: list[float] = []
    first = warmup(tmp_path / "a", small, on_progress=lambda progress: losses.append(progress.loss))
    again = warmup(tmp_path / "b", small)
    assert {f.name: f.read_bytes() for f in first.iterdir()} == {f.name: f.read_bytes() for f in again.iterdir()}
    assert np.mean(losses[-3:]) < 0.8 * losses[0]


def test_an_optimizer_that_torch_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(MissingDependencyError, match=r"torch 2\.9"):
        warmup(tmp_path / "warm", WORLD, steps=1)


def test_muon_takes_the_matrices_inside_the_layers_and_adamw_the_rest() -> None:
    model = make_tiny_model(train_tokenizer(), Shape(32, 1, 2, 64))
    muon, adamw = (
        [p for group in optimizer.param_groups for p in group["params"]]
        for optimizer in module._optimizers(model, WORLD)
    )
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted({names[id(p)].rpartition(".")[0].rpartition(".")[2] for p in muon}) == [
        *("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    ]
    assert len(muon) + len(adamw) == len(names)
    assert "model.embed_tokens.weight" in {names[id(p)] for p in adamw}


def test_padding_a_batch_in_groups_leaves_its_gradient_as_it_is() -> None:
    dialogue = Dialogue(train_tokenizer(WORLD.phrases))
    sources = [load_problems(f"{name}:train") for name in WORLD.problems]
    batch = [warmup_dialogue(np.random.default_rng(seed), dialogue, WORLD, sources) for seed in range(24)]
    results: list[tuple[float, list[Any]]] = []
    for groups in (1, 5):
        model = make_tiny_model(dialogue.tokenizer, Shape(32, 1, 2, 64))
        loss = module._backward(model, batch, groups)
        results.append((loss, [p.grad for p in model.parameters()]))
    (whole, whole_grads), (cut, cut_grads) = results
    assert cut == pytest.approx(whole, rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole_grads, cut_grads, strict=True))
    assert any(float(grad.abs().max()) > 1e-3 for grad in whole_grads)


class SampledBatch(ProblemSource):
    """A source that remembers what was drawn from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self._source = load_problems(f"{name}:train")

    def get(self, seed: int, index: int) -> Problem:
        self.problems.append(self._source.get(seed, index))
        return self.problems[-1]

    def by_id(self, problem_id: str) -> Problem:
        return self._source.by_id(problem_id)


def test_only_right_answers_are_learned_in_the_world_and_only_of_the_train_splits() -> None:
    dialogue = Dialogue(train_tokenizer(WORLD.phrases))
    sources = [SampledBatch(name) for name in WORLD.problems]
    seen, turns = set(), []
    for seed in range(400):
        for source in sources:
            source.problems.clear()
        ids, mask = warmup_dialogue(np.random.default_rng(seed), dialogue, WORLD, sources)
        (source,) = [source for source in sources if source.problems]
        problem = source.problems[0]
        text = dialogue.decode(ids)
        assert text.startswith(f"<|im_start|>user\n{problem.prompt}<|im_end|>")
        assert split_of(problem.prompt) == "train"
        answers = [part.partition("<|im_end|>")[0] for part in text.split("<|im_start|>assistant\n")[1:]]
        right = f"\\boxed{{{problem.gold[0]}}}"
        assert answers.index(right) == len(answers) - 1, "the last answer is right, all before it are wrong"
        assert dialogue.decode(ids[mask]) == f"{right}<|im_end|>"
        seen.add(source.name)
        turns.append(len(answers))
    assert seen == set(WORLD.problems)
    assert set(turns) == {1, 2, 3, 4}
    assert 0.08 < np.mean(np.array(turns) > 1) < 0.23


def test_who_writes_down_the_calculation_is_told_its_value_in_the_environments_words(tmp_path: Path) -> None:
    dialogue = Dialogue(train_tokenizer(CALCULATOR.phrases))
    source = SampledBatch("add3")
    asked, told = [], []
    for seed in range(400):
        source.problems.clear()
        ids, mask = warmup_dialogue(np.random.default_rng(seed), dialogue, CALCULATOR, [source])
        problem = source.problems[0]
        calculation = problem.prompt.removeprefix("What is ").removesuffix("?")
        assert split_of(problem.prompt) == "train"
        text = dialogue.decode(ids)
        said = [part.partition("<|im_end|>")[0] for part in text.split("<|im_start|>assistant\n")[1:]]
        right = [f"\\boxed{{{problem.gold[0]}}}", f"{calculation}=\\boxed{{{problem.gold[0]}}}"]
        assert said[-1] in right
        assert dialogue.decode(ids[mask]) == f"{said[-1]}<|im_end|>", "the right answer alone is learned"
        asked.append(said[-1] == right[1])
        if len(said) == 2:
            (value,) = re.findall(r" A calculator says (\S+ = \d+)\.", text) or [None]
            told.append(value is not None)
            assert value == (f"{calculation} = {problem.gold[0]}" if said[0].startswith(f"{calculation}=") else None)
            config = EnvConfig(train=[problem], feedback="tool", num_turns=2, max_completion_tokens=24)
            env: Any = config.make("train", policy=SimpleNamespace(tokenizer=dialogue.tokenizer))
            env.reset(seed=0)
            first = np.array([*dialogue.tokenizer.encode(said[0]), dialogue.tokenizer.eos_token_id])
            observation, *_ = env.step(first)
            assert text.startswith(dialogue.decode(observation)), "the environment's own words"
            env.close()
    assert 0.2 < np.mean(asked) < 0.3
    assert 0.4 < np.mean(told) < 0.6
    assert 0.6 < len(told) / 400 < 0.8


def test_calculations_need_problems_that_are_some(tmp_path: Path) -> None:
    recipe = dataclasses.replace(CALCULATOR, parts=(Part("lins", 1.0),), calculations=1.0)
    with pytest.raises(InvalidValueError, match=r"calculations needs problems like 'What is 1\+2\?', got 'Solve"):
        warmup(tmp_path / "warm", recipe, steps=1)


def test_the_script_makes_a_policy_that_can_be_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module.main([str(tmp_path / "w"), "--steps", "3", "--episodes", "4"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("lins", "add1", "guess8"))
    with pytest.raises(InvalidValueError, match="did you mean 'world'"):
        module.main([str(tmp_path / "v"), "--recipe", "worlds"])
    done = CliRunner().invoke(
        app, ["eval", "--policy", str(tmp_path / "w"), "--episodes", "4", "--out", str(tmp_path / "e")]
    )
    assert done.exit_code == 0
    assert json.loads((tmp_path / "e" / "report.json").read_text())["episodes"] == 4


def test_first_try_accuracy_is_that_of_the_parts() -> None:
    policy = CausalLMPolicy.from_pretrained(BUILTIN_PATH)
    figures = first_try_accuracy(policy, TINY, "test", episodes=256)
    assert list(figures) == ["lins", "add1", "guess8"]
    assert figures["lins"].count == 256
    assert figures["lins"].value == pytest.approx(accuracy(policy, "lins:test", "acc@1", 1, 512), abs=0.1)
    # One blind guess among ten digits.
    assert figures["guess8"].value == pytest.approx(0.1, abs=0.06)
    assert figures == first_try_accuracy(policy, TINY, "test", episodes=256)


def test_only_right_answers_and_blind_guesses_are_learned_and_only_of_the_train_split() -> None:
    dialogue = Dialogue(train_tokenizer())
    sources = [load_problems(f"{name}:train") for name in TINY.problems]
    turns, families = [], set()
    for seed in range(300):
        ids, mask = warmup_dialogue(np.random.default_rng(seed), dialogue, TINY, sources)
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
    policy = CausalLMPolicy.from_pretrained(BUILTIN_PATH)
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
