"""Tasks as files: those of the package, and a user's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.baselines import RunConfig
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.algorithms.grpo import GRPO
from mathturn_gym.baselines.tasks import ended_number, last_number, load_task, task_names
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.types import Problem, Status, TurnContext


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


BENCHMARKS = {"aime24", "aime25", "amc23", "families", "gsm8k", "math500", "olympiadbench"}
CHAT = {"smol-add1", "smol-add2", "smol-lins", "smol-story2"}
"""Tasks of a real chat model, which the classic algorithms, with networks of their own, cannot train."""
OWN = sorted(set(task_names()) - BENCHMARKS - CHAT)
"""Tasks to train on, whose problems are made here."""


def test_the_packages_tasks() -> None:
    assert BENCHMARKS | CHAT | {"add1", "lins", "guess8", "mul2", "mixed"} <= set(task_names())
    for name in task_names():
        task = load_task(name)
        assert task.about
        assert task.config(budget=None if task.trains else {"episodes": 1}).task == task.name == name
        assert PolicyConfig(**task.sampling) is not None  # files of the package are not checked when they are loaded


def test_a_task_without_a_budget_is_for_evaluations() -> None:
    assert load_task("gsm8k").trains
    assert not load_task("aime24").trains
    with pytest.raises(InvalidValueError, match=r"task 'aime24' is for evaluations, its file has no \[budget\]"):
        load_task("aime24").config()


def test_scales_say_what_blind_guessing_reaches() -> None:
    for name in ("lins", "add1"):
        scale = load_task(name).scale
        for turn in range(1, 5):
            assert scale[f"acc@{turn}"] == pytest.approx((1 - 0.9**turn, 1.0))
    assert load_task("mul2").scale == {}


ON_POLICY = {"minibatches": 1, "epochs": 1}


@pytest.mark.parametrize("algorithm", sorted(registered()))
@pytest.mark.parametrize("task", OWN)
def test_every_algorithm_runs_on_every_task(algorithm: str, task: str) -> None:
    config = load_task(task).config(algorithm)
    assert config.algorithm.name == algorithm
    assert config.env.problems("test") is not None


@pytest.mark.parametrize("task", sorted(CHAT))
def test_every_algorithm_of_language_models_trains_a_chat_model(task: str) -> None:
    for name, kind in registered().items():
        if kind.kind == "language model":
            config = load_task(task).config(name)
            verifier = "ended_number" if task == "smol-lins" else "last_number"
            assert (config.policy.model, config.env.value("verifier")) == (
                "smollm2",
                f"mathturn_gym.baselines.tasks:{verifier}",
            )


@pytest.mark.parametrize(
    ("response", "right"),
    [("4 + 1 = 5", True), ("5", True), ("The answer is 5.", True), ("What is 4+1?", False), ("15", False), ("", False)],
)
def test_the_last_number_is_the_answer(response: str, right: bool) -> None:
    assert last_number(response, "5").correct is right
    assert last_number(response, ("x", "5")).correct is right
    assert not last_number(response, "-5").correct


def test_the_last_number_is_said_so_that_answers_given_again_are_seen() -> None:
    said = last_number("4 + 1 = 05.", "5")
    assert (said.status, said.answer, said.span, said.gold, said.rule) == (Status.RIGHT, "5", (8, 10), "5", "number")
    assert last_number("no idea", "5").status is Status.NO_ANSWER, "no number is not a wrong one"


def test_an_equation_that_is_cut_off_after_a_digit_is_no_answer() -> None:
    problem = Problem("lins/1", "Solve 7x+8=15 for x.", "1")
    cut = TurnContext(problem, 0, 4, "To solve the equation 7x+8 = 1", ids=np.arange(12), max_tokens=12)
    assert last_number(cut.response, problem.gold).correct, "what a policy was rewarded for"
    assert (ended_number(cut).status, ended_number(cut).reason) == (Status.NO_ANSWER, "cut off")
    ended = TurnContext(problem, 0, 4, "x = 1", ids=np.arange(11), max_tokens=12)
    assert ended_number(ended) == last_number("x = 1", problem.gold)
    assert ended_number(ended).correct
    assert ended_number(TurnContext(problem, 0, 4, "x = 1")).correct, "a text alone, whose budget is not known"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("5", "5"),
        ("x = 5", "5"),
        ("3x+4 = 19, so x is **5**.", "5"),
        ("28 + 38 = 66 marbles", "66"),
        ("Elif has 66 marbles.", "66"),
        ("The results are: $12$", "12"),
        ("5 - 8 = -3", "-3"),
        ("6x + 8", None),
        ("7 * 3 + 9", None),
        ("3x", None),
        ("3x = 9x", None),
        ("I shall add 4 to 5", None),
        ("+ 5", None),
        ("8 (5", None),
        ("Of the 8, take this 5", None),
        ("Of 8 I share 5", None),
        ("no idea", None),
    ],
)
def test_a_number_that_is_not_said_to_be_the_result_is_no_answer(response: str, answer: str | None) -> None:
    """Rewarded for the last number of whatever ended, a policy ended all its texts at the equation's left side: "6x + 8"."""
    found = ended_number(TurnContext(Problem("lins/1", "Solve 6x+8=20 for x.", "2"), 0, 4, response))
    assert found.answer == answer
    assert (found.status is Status.NO_ANSWER) is (answer is None)
    if answer is not None:
        assert found == last_number(response, "2")


def test_what_was_tuned_comes_with_the_algorithms_name() -> None:
    lins = load_task("lins")
    grpo = lins.config("grpo")
    assert isinstance(grpo.algorithm, GRPO)
    assert (grpo.algorithm.group_size, grpo.optimization.learning_rate) == (2, 5e-4)
    given = lins.config(GRPO(group_size=4))
    assert given.algorithm == GRPO(group_size=4), "an object has its options already"
    assert given.optimization.learning_rate == 1e-3
    assert lins.config("maskable_ppo").algorithm.to_json()["ent_coef"] == 0.005
    assert load_task("add1").config("maskable_ppo").algorithm.to_json()["pinned"] == 11


def test_settings_win_over_the_file_and_a_budget_replaces_its() -> None:
    config = load_task("lins").config("grpo", {"group_size": 4, "every": 3, "seed": 7}, budget={"tokens": 100})
    assert config.algorithm.to_json()["group_size"] == 4
    assert (config.evaluation.every, config.seed) == (3, 7)
    assert (config.budget.tokens, config.budget.episodes) == (100, None)


def test_a_file_of_ones_own_is_a_copy_that_was_changed(tmp_path: Path) -> None:
    text = load_task("lins").path.read_text()
    path = write(tmp_path, text.replace("num_turns = 4", "num_turns = 3").replace('"builtin"', '"somewhere/else"'))
    task = load_task(str(path))
    assert (task.name, task.env.value("num_turns")) == ("mine", 3)
    assert task.config("grpo").policy.model == "somewhere/else"
    assert task.config("grpo").task == "mine"


def test_a_file_that_says_what_differs_from_a_task(tmp_path: Path) -> None:
    text = """
base = "lins"
about = "Two turns."
[env]
num_turns = 2
[algorithms.grpo]
optimization = { learning_rate = 1e-4 }
[algorithms.rloo.optimization]
warmup = 7
"""
    task, lins = load_task(write(tmp_path, text)), load_task("lins")
    assert (task.name, task.about, task.env.value("num_turns")) == ("mine", "Two turns.", 2)
    assert task.env.value("problems") == lins.env.value("problems")
    assert dict(task.scale) == dict(lins.scale)
    grpo = task.config("grpo")
    assert grpo.algorithm == lins.config("grpo").algorithm, (
        "what the base tuned stays, where the file says nothing of it"
    )
    assert grpo.optimization == dataclasses.replace(lins.config("grpo").optimization, learning_rate=1e-4)
    rloo = task.config("rloo").optimization
    assert (rloo.warmup, rloo.batch_episodes) == (7, lins.config("rloo").optimization.batch_episodes)
    assert lins.config("rloo").optimization.warmup == 80, "the base is as it was"


def test_a_base_can_be_a_file_that_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "below.toml").write_text('base = "lins"\n[env]\nnum_turns = 3\n[algorithms.grpo]\ngroup_size = 8\n')
    (tmp_path / "tasks" / "middle.toml").write_text('base = "../below.toml"\n[env]\nmax_completion_tokens = 5\n')
    task = tmp_path / "tasks" / "top.toml"
    task.write_text('base = "middle.toml"\nabout = "the third"\n[env]\nnum_turns = 2\n')
    monkeypatch.chdir("/")  # it is looked for beside the file, not where the command runs
    found = load_task(task)
    assert (found.name, found.about, found.env.value("num_turns")) == ("top", "the third", 2)
    assert found.env.value("max_completion_tokens") == 5
    assert found.config("grpo").algorithm.to_json()["group_size"] == 8
    (tmp_path / "below.toml").write_text('base = "tasks/top.toml"\n')
    with pytest.raises(InvalidValueError, match=r"has itself for a base, by .*below\.toml"):
        load_task(task)


def test_a_policy_can_be_the_seeds_own(tmp_path: Path) -> None:
    text = load_task("lins").path.read_text()
    task = load_task(write(tmp_path, text.replace('"builtin"', '"runs/warm-{seed}"')))
    assert task.policy.model == "runs/warm-0"
    assert task.config("grpo", {"seed": 12}).policy.model == "runs/warm-12"
    assert task.config("grpo").policy.model == "runs/warm-0", "the default seed"
    tuned = task.config("clipped_reinforce", {"seed": 12})
    assert tuned.optimization == load_task("lins").config("clipped_reinforce").optimization, (
        "it is the task's own policy"
    )
    assert task.config("grpo", {"seed": 3, "policy.model": "runs/{seed}/x"}).policy.model == "runs/3/x"
    assert RunConfig.from_json(tuned.to_json()) == tuned


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[env", "is no TOML"),
        ("[budget]\ntokens = 1", r"lacks the table \[env\]"),
        ("[env]\n[sampling]\ntemprature = 1", "did you mean 'temperature'"),
        ("[env]\n[sampling]\nsamples = 0", "sampling.samples must be"),
        ("[env]\n[sampling]\ntop_p = 0.0", "top_p must be in"),
        ("[env]\n[budget]\ntokens = 1\n[optimisation]\nepochs = 1", "did you mean 'optimization'"),
        ("[env]\nnum_turn = 1\n[budget]\ntokens = 1", "did you mean 'num_turns'"),
        ("[env]\n[budget]\ntoken = 1", "did you mean 'tokens'"),
        ("algorithm = 'gropo'\n[env]\n[budget]\ntokens = 1", "did you mean 'grpo'"),
        ("scale = 3\n[env]\n[budget]\ntokens = 1", "scale must be a table"),
        ("[env]\n[budget]\ntokens = 1\n[scale]\nacc = [0.0, 1.0]", "scale must have lines as"),
        ("[env]\n[budget]\ntokens = 1\n[scale]\n'acc@1' = [0.5, 0.2]", "floor above its ceiling"),
        ("algorithms = 3\n[env]\n[budget]\ntokens = 1", "algorithms must be tables"),
        ("[env]\n[budget]\ntokens = 1\n[algorithms.clipped_reinforce]\nclp = 1", "did you mean 'clip'"),
        ("env = 3\n[budget]\ntokens = 1", "env must be a table"),
        ("base = 'linz'", "unknown base of task '.*mine.toml' 'linz': did you mean 'lins'"),
        ("base = 3", "unknown base of task"),
        ("base = 'mine.toml'", "has itself for a base"),
        ("base = 'other.toml'", "other.toml' cannot be read"),
        ("base = 'lins'\nenv = 3", "env must be a table"),
        ("base = 'lins'\n[env]\nnum_turn = 1", "did you mean 'num_turns'"),
    ],
)
def test_mistakes_are_found_where_the_file_is_loaded(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        load_task(write(tmp_path, text))


def test_unknown_tasks_and_files() -> None:
    with pytest.raises(InvalidValueError, match="unknown task 'linz': did you mean 'lins'"):
        load_task("linz")
    with pytest.raises(InvalidValueError, match=r"task 'none\.toml' cannot be read"):
        load_task("none.toml")


def test_options_that_an_algorithm_does_not_read_are_named() -> None:
    lins = load_task("lins")
    for algorithm, settings, message in (
        ("reinforce", {"clip": 0.1}, "unknown setting 'clip'.*options of reinforce: entropy_weight"),
        ("clipped_reinforce", {"critic_learning_rate": 9.0}, "unknown setting 'critic_learning_rate'"),
        ("turn_ppo", {"group_size": 2}, "unknown setting 'group_size'.*options of turn_ppo"),
    ):
        given: dict[str, Any] = dict(settings)
        with pytest.raises(InvalidValueError, match=message):
            lins.config(algorithm, given)
