"""TRL's own trainer on this environment, with the built-in model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mathturn_gym
from mathturn_gym.episodes.losses import policy_loss, token_logprobs
from mathturn_gym.episodes.packing import model_inputs, pack
from mathturn_gym.episodes.returns import BiasedEstimatorWarning, advantages
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import load_problems
from mathturn_gym.types import Episode, Problem

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever the libraries below TRL have to say while they are imported
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install '.[trl]'")
    from mathturn_gym.neighbors.trl import (
        AnswerEnvironments,
        TurnLevelGRPOTrainer,
        TurnRollout,
        _TrainersGeneration,
    )
    from mathturn_gym.policies import BUILTIN_PATH

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL and its libraries warn of things of their own
GROUP, ROWS, TURNS, MOST = 4, 16, 3, 8


def model_and_tokenizer() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(BUILTIN_PATH), AutoTokenizer.from_pretrained(BUILTIN_PATH)


def options(folder: Path, **changes: Any) -> Any:
    return trl.GRPOConfig(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "num_generations": GROUP,
            "per_device_train_batch_size": ROWS,
            "max_steps": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "seed": 3,
            **changes,
        }
    )


def recorded(rollout: TurnRollout) -> list[tuple[list[Any], list[Episode]]]:
    """Every call of a rollout: TRL's prompts and the episodes played."""
    calls: list[tuple[list[Any], list[Episode]]] = []
    play = TurnRollout.__call__

    class Recorded(type(rollout)):  # type: ignore[misc]
        def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
            out = play(self, prompts, trainer)
            calls.append((list(prompts), self.episodes))
            return out

    rollout.__class__ = Recorded
    return calls


def make(folder: Path, problems: Any, size: int | None, kind: Any = None, **changes: Any) -> tuple[Any, TurnRollout]:
    """A trainer on the built-in model."""
    model, tokenizer = model_and_tokenizer()
    keywords = {name: changes.pop(name) for name in ("estimator", "scale_advantages") if name in changes}
    rollout = TurnRollout(num_turns=TURNS, max_completion_tokens=MOST, discount=changes.pop("discount", 1.0))
    dataset = rollout.dataset(problems, size)
    args = options(folder, **changes)
    if kind is None:
        trainer = TurnLevelGRPOTrainer(model, args, dataset, rollout=rollout, processing_class=tokenizer, **keywords)
    else:
        trainer = kind(
            model=model,
            args=args,
            train_dataset=dataset,
            rollout_func=rollout,
            reward_funcs=rollout.episode_return,
            processing_class=tokenizer,
        )
    return trainer, rollout


@pytest.mark.parametrize("plain", [False, True], ids=["turn-level", "GRPOTrainer"])
def test_prompts_are_matched_by_id_and_groups_are_trls(tmp_path: Path, plain: bool) -> None:
    """TRL shuffles and repeats the rows; every episode must be on its own row's problem. One prompt with many answers."""
    problems = [load_problems("guess8").get(0, index) for index in range(40)]
    assert len({problem.prompt for problem in problems}) < len({problem.gold for problem in problems})
    problems = [Problem(f"g/{i}", p.prompt, p.gold, p.hints, p.false_hints) for i, p in enumerate(problems)]
    trainer, rollout = make(tmp_path, problems, None, trl.GRPOTrainer if plain else None)
    calls = recorded(rollout)
    trainer.train()
    assert len(calls) == 2
    order = [prompt[-1]["problem_id"] for prompts, _ in calls for prompt in prompts]
    assert order != sorted(order, key=lambda one: int(one[2:]))  # TRL did shuffle
    for prompts, episodes in calls:
        assert [episode.problem_id for episode in episodes] == [prompt[-1]["problem_id"] for prompt in prompts]
        for start in range(0, ROWS, GROUP):
            group = episodes[start : start + GROUP]
            assert len({episode.group for episode in group}) == len({episode.problem_id for episode in group}) == 1
        assert len({episode.group for episode in episodes}) == ROWS // GROUP
        assert len({tuple(episode.ids.tolist()) for episode in episodes}) > ROWS // 2  # samples of their own
    assert {name for name in trainer.state.log_history[0] if "acc" in name} == {"acc@1", "acc@2", "acc@3"}


def test_a_data_set_of_the_users_own_is_matched_by_its_text(tmp_path: Path) -> None:
    from datasets import Dataset

    problems = [Problem(f"p/{i}", f"What is {i}+1?", str(i + 1)) for i in range(8)]
    rollout = TurnRollout(num_turns=2, max_completion_tokens=4)
    rollout.dataset(problems)
    calls = recorded(rollout)
    model, tokenizer = model_and_tokenizer()
    trainer = TurnLevelGRPOTrainer(
        model,
        options(tmp_path, max_steps=1),
        Dataset.from_dict({"prompt": [problem.prompt for problem in problems]}),
        rollout=rollout,
        processing_class=tokenizer,
    )
    trainer.train()
    ((prompts, episodes),) = calls
    prompt_of = {problem.id: problem.prompt for problem in problems}
    assert [prompt_of[episode.problem_id] for episode in episodes] == prompts


def test_rows_that_cannot_be_matched_are_named() -> None:
    rollout = TurnRollout()
    twins = [Problem("a", "Guess.", "1"), Problem("b", "Guess.", "2")]
    rollout.dataset(twins)
    for prompt, message in (
        ("What?", "no known problem has the prompt 'What\\?'"),
        ("Guess.", "2 problems have the prompt 'Guess.' \\(a, b"),
        ([{"role": "user", "content": "x", "problem_id": "c"}], "problem_id 'c' is not known"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            rollout._problems.id_of(prompt)
    assert rollout._problems.id_of([{"role": "user", "content": "Guess.", "problem_id": "b"}]) == "b"
    with pytest.raises(InvalidValueError, match="two different problems have the id 'a'"):
        rollout.dataset([Problem("a", "Guess.", "3")])


def test_datasets_hold_different_problems() -> None:
    rows = TurnRollout().dataset("lins", 300)
    assert len(set(rows["problem_id"])) == 300
    assert rows[0]["prompt"][0]["content"] == load_problems("lins").get(0, 0).prompt
    assert TurnRollout().dataset("lins", 5, seed=1)["problem_id"] != rows["problem_id"][:5]
    with pytest.raises(InvalidValueError, match="has no end: say how many"):
        TurnRollout().dataset("lins")
    with pytest.raises(InvalidValueError, match="has 44 different problems"):
        TurnRollout().dataset("add1", 5000)


def test_turn_advantages_are_on_the_ids_of_their_turns(tmp_path: Path) -> None:
    trainer, rollout = make(tmp_path, "lins", 16, max_steps=1, discount=0.5)
    outputs: list[Any] = []
    score = trainer._generate_and_score_completions

    def noted(inputs: Any) -> Any:
        outputs.append(score(inputs))
        return outputs[-1]

    trainer._generate_and_score_completions = noted
    trainer.train()
    ((out,), episodes) = outputs, rollout.episodes
    expected = advantages(episodes, "turn_rloo", discount=0.5)
    assert any(len(values) > 1 and len(set(values.tolist())) > 1 for values in expected)
    for row, episode, values in zip(out["advantages"], episodes, expected, strict=True):
        shown = torch.zeros_like(row)
        for (start, end), value in zip(episode.turn_spans - episode.prompt_length, values, strict=True):
            shown[start:end] = float(value)
        assert torch.equal(row, shown)
    mask = out["tool_mask"] * out["completion_mask"]
    assert int(mask.sum()) == sum(int(episode.loss_mask.sum()) for episode in episodes)


@pytest.mark.parametrize(("loss_type", "normalization"), [("grpo", "sequence"), ("bnpo", "token")])
@pytest.mark.parametrize("scale", [False, True])
def test_the_same_batch_gives_the_loss_and_gradient_of_our_trainers(
    tmp_path: Path, loss_type: str, normalization: Any, scale: bool
) -> None:
    """In the second pass over a batch: the old log-probs are the sampler's, ratios differ from 1, and some are clipped."""
    compared: list[tuple[float, float, float]] = []

    class Compared(TurnLevelGRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            theirs = super()._compute_loss(model, inputs)
            # TRL shuffles the rows of a batch: find each one's episode again by its ids.
            episodes = self._rollout.episodes
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            kept = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1).bool()
            rows = [_episode_of(row[mask].tolist(), episodes) for row, mask in zip(ids, kept, strict=True)]
            values = dict(zip(map(id, episodes), advantages(episodes), strict=True))
            deviation = float(np.concatenate(list(values.values())).std()) + 1e-8 if scale else 1.0
            batch = pack(rows, advantages=[values[id(row)] / np.float32(deviation) for row in rows])
            logprobs, _ = token_logprobs(model(**model_inputs(batch), use_cache=False).logits, batch)
            ours = policy_loss(logprobs, batch, clip=0.2, normalization=normalization).loss
            weights = list(model.parameters())
            flat = [
                torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights, retain_graph=True)])
                for loss in (theirs, ours)
            ]
            scale_of = self.current_gradient_accumulation_steps
            difference = float((flat[0] * scale_of - flat[1]).norm() / flat[1].norm())
            compared.append((float(theirs) * scale_of, float(ours), difference))
            return theirs

    model, tokenizer = model_and_tokenizer()
    rollout = TurnRollout(num_turns=TURNS, max_completion_tokens=MOST)
    args = options(tmp_path, num_iterations=2, loss_type=loss_type, max_steps=4, learning_rate=3e-3)
    trainer = Compared(
        model,
        args,
        rollout.dataset("lins", 64),
        rollout=rollout,
        processing_class=tokenizer,
        scale_advantages=scale,
    )
    trainer.train()
    assert len(compared) == 4
    for theirs, ours, difference in compared:
        assert theirs == pytest.approx(ours, abs=1e-5)
        assert difference < 1e-4
    assert max(abs(theirs) for theirs, *_ in compared) > 1e-2


def _episode_of(ids: list[int], episodes: Sequence[Episode]) -> Episode:
    """The episode of these ids, up to the end of its last answer; where several are alike, so are their advantages."""
    return next(episode for episode in episodes if episode.ids[: episode.turn_spans[-1, 1]].tolist() == ids)


def test_credit_of_whole_episodes_is_trls_own(tmp_path: Path) -> None:
    """With GRPO's estimator and no discount, the turn-level trainer is TRL's trainer."""
    losses = []
    for kind, changes in ((trl.GRPOTrainer, {}), (None, {"estimator": "grpo"})):
        trainer, _ = make(tmp_path, "lins", 32, kind, max_steps=2, **changes)
        trainer.train()
        losses.append([(row["loss"], row["grad_norm"]) for row in trainer.state.log_history if "loss" in row])
    assert np.allclose(losses[0], losses[1], atol=1e-5)
    with pytest.warns(BiasedEstimatorWarning):
        advantages(trainer._rollout.episodes, "grpo")


def test_trls_own_generation_plays_too(tmp_path: Path) -> None:
    """What vLLM and sharded models use, here with transformers: budgets are a turn's, ids are not encoded again."""
    trainer, rollout = make(tmp_path, "lins", 8, max_steps=1, generation_kwargs={"do_sample": True})
    used: list[int] = []
    single = trainer._generate_single_turn

    def counted(prompts: Any, *args: Any, **kwargs: Any) -> Any:
        used.append(len(prompts))
        return single(prompts, *args, **kwargs)

    trainer._generate_single_turn = counted
    before = trainer.generation_config.max_new_tokens
    trainer.train()
    assert used[0] == ROWS
    assert 1 < len(used) <= TURNS
    assert trainer.generation_config.max_new_tokens == before
    lengths = [end - start for episode in rollout.episodes for start, end in episode.turn_spans.tolist()]
    assert max(lengths) == MOST or any(not t for e in rollout.episodes for t in e.turn_truncated)
    assert max(lengths) <= MOST


class FakeTrainer:
    """As much of a trainer as `_TrainersGeneration` needs, one of several ranks."""

    use_vllm = False

    def __init__(self, processes: int) -> None:
        self.eos_token_ids = [2]
        self.accelerator = type("Accelerator", (), {"num_processes": processes})()
        self.state = type("State", (), {"global_step": 5})()
        self.calls: list[list[list[int]]] = []

    def _generate_single_turn(self, prompts: Any, *_: Any, num_generations: int) -> Any:
        self.calls.append(prompts)
        return [[7, 8, 9, 2] for _ in prompts], [[-0.5, None, -0.25, 0.0] for _ in prompts]


def test_ranks_agree_on_the_number_of_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    import mathturn_gym.neighbors.trl as module

    trainer = FakeTrainer(2)
    others = [3, 1, 0]  # what the other rank has left, call by call
    monkeypatch.setattr(module, "gather_object", lambda own: [*own, others.pop(0)])
    policy = _TrainersGeneration(trainer)
    (one,) = policy.complete([np.array([1, 2])], max_tokens=[3])
    assert trainer.calls == [[[1, 2], [2], [2]]]
    assert (one.ids.tolist(), one.truncated, one.version_start) == ([7, 8, 9], True, 5)
    assert np.isnan(one.logprobs).tolist() == [False, True, False]
    policy.wait_for_others()
    assert trainer.calls[1:] == [[[2]]]
    assert others == []


def test_mistakes_show_before_the_first_step(tmp_path: Path) -> None:
    for keywords, message in (
        ({"problems": "lins"}, "problems must not be given: it is the data set's"),
        ({"tokenizer": "builtin"}, "tokenizer must not be given: it is the trainer's"),
        ({"env_id": "MathMultiTurn-v1"}, "unknown environment"),
        ({"feedback": "plian"}, "did you mean 'plain'"),
        ({"discount": 1.5}, "discount must be"),
        ({"num_turns": 0}, "num_turns must be"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            TurnRollout(**keywords)
    rollout = TurnRollout()
    for more, message in (
        ({"estimator": "gae"}, "unknown estimator 'gae'"),
        ({"reward_funcs": [len]}, "reward_funcs must not be given to TurnLevelGRPOTrainer"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            TurnLevelGRPOTrainer(None, rollout=rollout, **more)


def test_evaluation_plays_other_problems(tmp_path: Path) -> None:
    model, tokenizer = model_and_tokenizer()
    rollout = TurnRollout(num_turns=2, max_completion_tokens=MOST)
    trainer = TurnLevelGRPOTrainer(
        model,
        options(tmp_path, per_device_eval_batch_size=8, num_generations_eval=2, max_steps=1),
        rollout.dataset("lins", 16),
        eval_dataset=rollout.dataset("lins:test", 8),
        rollout=rollout,
        processing_class=tokenizer,
    )
    calls = recorded(rollout)
    figures = trainer.evaluate()
    assert 0 <= figures["eval_acc@1"] <= 1
    assert [len(episodes) for _, episodes in calls] == [8, 8]
    test = set(rollout.dataset("lins:test", 8)["problem_id"])
    assert {episode.problem_id for _, episodes in calls for episode in episodes} == test
    assert {episode.group for episode in calls[0][1]} == {"0", "1", "2", "3"}
    seeds = {episode.seed for _, episodes in calls for episode in episodes}
    assert len(seeds) == 2


TWO_PROCESSES = """
import json, sys, warnings
warnings.simplefilter("ignore")
from accelerate.utils import gather_object
sys.path.insert(0, {folder!r})
import test_trl
trainer, rollout = test_trl.make({out!r}, "lins", 12, num_generations=4, per_device_train_batch_size=6, max_steps=1)
outputs = []
score = trainer._generate_and_score_completions
trainer._generate_and_score_completions = lambda inputs: outputs.append(score(inputs)) or outputs[-1]
trainer.train()
rows = [
    [episode.index, episode.group, episode.problem_id, episode.rewards.tolist(), values[values != 0].unique().tolist()]
    for episode, values in zip(rollout.episodes, outputs[0]["advantages"], strict=True)
]
ids = [[episode.ids.tolist(), episode.seed] for episode in rollout.episodes]
rows, ids = gather_object(rows), gather_object(ids)
if trainer.accelerator.is_main_process:
    print("RESULT " + json.dumps([rows, ids]))
"""


@pytest.mark.slow  # two processes that import TRL; the tests above hold groups and advantages in one
def test_groups_across_two_processes(tmp_path: Path) -> None:
    """Six rows a process, groups of four: the second group lies across both. Advantages are those of the whole batch."""
    script = tmp_path / "two.py"
    out = str(tmp_path / "out")
    script.write_text(TWO_PROCESSES.format(folder=str(Path(__file__).parent), out=out), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    root = Path(mathturn_gym.__file__).parents[1]
    environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    rows, ids = json.loads(lines[0].removeprefix("RESULT "))
    assert [row[0] for row in rows] == list(range(12))
    assert [row[1] for row in rows] == [str(index // 4) for index in range(12)]
    assert len({tuple(one) for one, _ in ids}) > 6
    members = {group: [row for row in rows if row[1] == group] for group in ("0", "1", "2")}
    returns = {group: [np.cumsum(rewards[::-1])[::-1] for *_, rewards, _ in of] for group, of in members.items()}
    for group, of in members.items():
        assert len({problem for _, _, problem, *_ in of}) == 1
        for own, (*_, found) in zip(returns[group], of, strict=True):
            expected = []
            for turn, value in enumerate(own):
                others = [other[turn] for other in returns[group] if len(other) > turn and other is not own]
                elsewhere = [
                    np.mean([other[turn] for other in theirs if len(other) > turn])
                    for name, theirs in returns.items()
                    if name != group and any(len(other) > turn for other in theirs)
                ]
                baseline = others or elsewhere  # where nobody of the group came so far: the other groups' means
                expected.append(value - (np.mean(baseline) if baseline else 0.0))
            shown = sorted({round(float(value), 4) for value in expected if value})
            assert sorted(round(value, 4) for value in found) == shown


# ---- the environment with a tool


def test_the_tool_by_itself() -> None:
    factory = AnswerEnvironments(num_turns=3, discount=0.5, feedback="plain")
    rows = factory.dataset([Problem("p/1", "What is 40+2?", "42"), Problem("p/2", "What is 1/2?", r"\frac{1}{2}")])
    env: Any = factory()
    assert env.reset(**rows[0]) is None  # the prompt shows the problem already
    assert env.submit_answer("41") == "Unfortunately your answer is wrong. Let's try again."
    assert env.submit_answer("42") == "Right. The episode is over."
    assert env.submit_answer("42") == "The episode is over: no further answer is taken."
    assert env.get_reward() == -1 + 0.5 * 1
    env.reset(prompt="What is 1/2?")
    assert env.submit_answer("0.5") == "Right. The episode is over."
    assert env.get_reward() == 1.0
    env.reset(**rows[1])
    assert env.get_reward() == -1.0  # it never answered
    env.reset(**rows[1])
    for _ in range(3):
        said = env.submit_answer("}{ <|im_end|> \\boxed{1}")
    assert said == "Wrong. The episode is over."
    assert env.get_reward() == -1.75


def test_trl_calls_the_tool(tmp_path: Path) -> None:
    """The model's part is played by a script, in Qwen's format of tool calls; everything else is TRL's."""
    from transformers import AutoModelForCausalLM

    from mathturn_gym.testing import make_tokenizer

    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer = make_tokenizer(template.read_text(encoding="utf-8"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    model: Any = AutoModelForCausalLM.from_pretrained(BUILTIN_PATH)
    model.resize_token_embeddings(len(tokenizer))
    factory = AnswerEnvironments(num_turns=2)
    problems = [Problem(f"p/{i}", f"What is {i}+1?", str(i + 1)) for i in range(4)]
    trainer = trl.GRPOTrainer(
        model=model,
        args=options(
            tmp_path, max_steps=1, per_device_train_batch_size=8, num_generations=2, max_completion_length=400
        ),
        train_dataset=factory.dataset(problems),
        environment_factory=factory,
        processing_class=tokenizer,
    )
    calls = 0

    def scripted(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        nonlocal calls
        calls += 1
        call = '<tool_call>\n{"name": "submit_answer", "arguments": {"answer": "1"}}\n</tool_call>'
        ids = tokenizer((call if calls == 1 else "Done.") + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return [list(ids) for _ in prompt_ids], None

    trainer._generate_single_turn = scripted
    trainer.train()
    rewards = trainer._logs["rewards"]["AnswerEnvironment"]
    prompts = [prompt[-1]["content"] for prompt in trainer._logs["prompt"]]
    assert sorted(set(prompts)) == [problem.prompt for problem in problems]
    assert list(rewards) == [1.0 if prompt == "What is 0+1?" else -1.0 for prompt in prompts]
    assert trainer.state.log_history[0]["tools/call_frequency"] == 1.0
