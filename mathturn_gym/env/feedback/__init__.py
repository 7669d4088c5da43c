"""Feedback: pure functions from a judged turn to the text that the policy is told.

A feedback is any callable `TurnContext -> str`; the names in `FEEDBACK` are the built-in modes, `NAME:zh` says the same in
Chinese, `TemplateFeedback` says it in your words, and `feedback_mode` registers a mode of your own. The module `modes`
lists what each tells.
"""

from mathturn_gym.env.feedback._registry import FEEDBACK, Feedback, TemplateFeedback, feedback_mode
from mathturn_gym.env.feedback.modes import AboveBelow, hint, plain

__all__ = ["FEEDBACK", "AboveBelow", "Feedback", "TemplateFeedback", "feedback_mode", "hint", "plain"]
