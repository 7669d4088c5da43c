"""Tasks: environment, problems, prompt, budgets and splits together, one declarative file each.

    tasks/lins.toml      a file of the package, by its name: load_task("lins")
    mine.toml            a file of your own, by its path:    load_task("mine.toml")

A file for evaluations has `[env]` (problems, the columns of their data set, prompt, budgets), `[policy]` and `[sampling]`
(how it samples, whatever the policy, and how often). One to train on also has the other tables of a run (`[budget]`,
`[optimization]`, `[evaluation]`), the algorithm that runs where none is named (`algorithm = "NAME"`), and by algorithm what
was tuned for it: `[algorithms.NAME]` has its options, `[algorithms.NAME.optimization]` (or another part) what else differs
with it. `[algorithms.classic]` is for all those that choose one token id per step. `[scale]` says what
blind guessing reaches and what can be reached at most, so that tasks can be averaged.
"""

from __future__ import annotations

from mathturn_gym.baselines.tasks._task import Task, ended_number, last_number, load_task, task_names

__all__ = ["Task", "ended_number", "last_number", "load_task", "task_names"]
