"""What is said, in English and in Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["RIGHT_TEXT", "TEXTS", "WRONG_TEXT"]

RIGHT_TEXT: Final = "Congratulations! You are correct!"
"""What `plain` says after a right answer: the sentence of AReaL's `MathMultiTurnAgent`."""

WRONG_TEXT: Final = "Unfortunately your answer is wrong. Let's try again."
"""What it says after any other."""


TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    "en": {
        "right": RIGHT_TEXT,
        "wrong": WRONG_TEXT,
        "neutral": "Please check your answer.",
        "no_answer": r"No answer was found in your response. Put your answer into \boxed{}.",
        "unreadable": "Your answer could not be read as mathematics. Let's try again.",
        "unevaluated": "Your answer is not worked out. Let's try again.",
        "undecided": "It could not be decided whether your answer is right. Try a simpler form.",
        "hint": " Hint: {hint}",
        "sign": "Its sign is wrong.",
        "small": "It is too small in size.",
        "large": "It is too large in size.",
        "far": "It is off by a factor of more than ten.",
        "digits": "{right} of its {count} digits are right.",
        "count": "It should have {count} elements.",
        "elements": "These of its elements are right: {which}.",
        "no_element": "None of its elements is right.",
        "tool": "You wrote {left} = {right}. A calculator says {left} = {value}.",
        "tool_alone": "A calculator says {left} = {value}.",
        "tool_none": "There is no calculation in your response that a calculator could repeat.",
    },
    "zh": {
        "right": "恭喜，你答对了！",
        "wrong": "很遗憾，你的答案不对。我们再试一次。",
        "neutral": "请检查你的答案。",
        "no_answer": r"在你的回答中没有找到答案。请把答案写在 \boxed{} 里。",
        "unreadable": "你的答案无法作为数学式子读取。我们再试一次。",
        "unevaluated": "你的答案还没有算完。我们再试一次。",
        "undecided": "无法判断你的答案是否正确。请换一种更简单的形式。",
        "hint": "提示：{hint}",
        "sign": "符号不对。",
        "small": "绝对值太小。",
        "large": "绝对值太大。",
        "far": "相差十倍以上。",
        "digits": "{count} 位数字中有 {right} 位正确。",
        "count": "答案应该有 {count} 个元素。",
        "elements": "以下元素正确：{which}。",
        "no_element": "没有一个元素正确。",
        "tool": "你写的是 {left} = {right}。计算器的结果是 {left} = {value}。",
        "tool_alone": "计算器的结果是 {left} = {value}。",
        "tool_none": "你的回答中没有计算器可以重复的计算。",
    },
}
"""By language, then by what it says."""
