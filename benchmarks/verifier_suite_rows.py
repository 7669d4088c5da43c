"""The hand-written rows of the verifier's suite: (source, category, kind, label, gold, response).

Labels: `T` right, `F` wrong, `T!` equal but unevaluated, and so wrong under form="evaluated".
"""

from __future__ import annotations

A, R = "answer", "response"
HandWritten = tuple[str, str, str, str, str, str]


def _rows(source: str, category: str, kind: str, *cases: tuple[str, str, str]) -> list[HandWritten]:
    return [(source, category, kind, *case) for case in cases]


_POSITIVE: list[HandWritten] = [
    *_rows(
        "unicode", "positive", A,
        ("T", "42", "４２"), ("T", "42", "٤٢"), ("T", "-7", "−7"), ("T", "\\frac{3}{4}", "¾"), ("T", "\\frac{5}{2}", "2½"),
        ("T", "2\\pi", "2π"), ("T", "x^2", "x²"), ("T", "x \\le 3", "x ≤ 3"), ("T", "\\sqrt{5}", "√5"), ("T", "6", "６"),
        ("T", "\\pm 3", "±3"), ("T", "(-\\infty, 2) \\cup (3, \\infty)", "(-∞, 2) ∪ (3, ∞)"), ("T!", "6", "2×3"), ("T!", "4", "8÷2"),
        ("T", "\\mathbb{R}", "ℝ"), ("T", "60^\\circ", "60°"), ("T", "x_1", "x₁"),
    ),
    *_rows(
        "units and currency", "positive", A,
        ("T", "5", "5\\text{ cm}"), ("T", "5\\text{ cm}", "5 centimeters"), ("T", "12", "12 square meters"), ("T", "18.90", "\\$18.90"),
        ("T", "\\$32,348", "32348"), ("T", "15\\mbox{ cm}^2", "15"), ("T", "10", "10 weeks"), ("T", "45^\\circ", "45 degrees"),
        ("T", "45^\\circ", "45^{\\circ}"), ("T", "60", "60\\,\\mathrm{km/h}"), ("T", "7", "7\\ \\text{apples}"), ("T", "3.5", "3.5 \\text{ hours}"),
        ("T", "\\frac{\\pi}{4}", "45^\\circ"), ("T", "1200", "€1,200"), ("T", "100", "100 \\text{ dollars}"),
    ),
    *_rows(
        "percent", "positive", A,
        ("T", "28\\%", "28%"), ("T", "28\\%", "28 percent"), ("T", "28\\%", "0.28"), ("T", "28\\%", "28"), ("T", "12.5\\%", "\\frac{1}{8}"), ("T", "33\\frac{1}{3}\\%", "\\frac{1}{3}"), ("T", "-5\\%", "-0.05"),
        ("T", "0.4", "40\\%"), ("T", "150\\%", "1.5"),
    ),
    *_rows(
        "numbers", "positive", A,
        ("T", "300000000", "3 \\times 10^8"), ("T", "0.00012", "1.2 \\cdot 10^{-4}"), ("T", "0.00012", "1.2e-4"), ("T", "\\frac{1}{3}", "0.\\overline{3}"),
        ("T", "\\frac{7}{22}", "0.3\\overline{18}"), ("T", "\\frac{1}{2}", "0.5"), ("T", ".5", "0.50"), ("T", "7", "+7"), ("T", "007", "7"),
        ("T", "2.75", "2\\frac{3}{4}"), ("T", "2.75", "2 3/4"), ("T", "3.14", "3,14"), ("T", "six", "6"), ("T", "21", "twenty-one"),
        ("T!", "120", "5!"), ("T!", "0.125", "2^{-3}"), ("T!", "10", "\\binom{5}{2}"), ("T!", "46", "\\lfloor 46.9 \\rfloor"), ("T!", "1", "0!"),
        ("T!", "2", "\\log_2 4"), ("T!", "5", "|-5|"), ("T!", "1", "\\sin^2 1 + \\cos^2 1"), ("T!", "7", "5+2=7"),
        ("T", "2^{10}", "1024"), ("T", "2^{100}", "4^{50}"), ("T", "\\frac{100!}{98!}", "9900"), ("T", "10^{20}", "100000000000000000000"),
    ),
    *_rows(
        "constants", "positive", A,
        ("T", "\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"), ("T", "\\ln 8", "3 \\ln 2"), ("T", "\\ln 8", "\\log 8"), ("T", "e^2", "\\exp(2)"),
        ("T", "\\frac{\\sqrt{6}+\\sqrt{2}}{4}", "\\cos 15^\\circ"), ("T", "\\sqrt{5+2\\sqrt{6}}", "\\sqrt{2}+\\sqrt{3}"), ("T", "3+4i", "4i + 3"),
        ("T", "i", "\\sqrt{-1}"), ("T!", "-1", "i^2"), ("T", "e^{i\\pi/2}", "i"), ("T", "\\sqrt[3]{-8}", "-2"), ("T", "\\arctan 1", "\\frac{\\pi}{4}"),
        ("T", "\\frac{1+\\sqrt{5}}{2}", "\\frac{2}{\\sqrt{5}-1}"), ("T", "\\log_2 10", "\\frac{\\ln 10}{\\ln 2}"), ("T", "\\infty", "+\\infty"),
        ("T", "\\frac{\\pi}{2}", "pi/2"), ("T", "2\\sqrt{3}", "2*sqrt(3)"), ("T", "\\cos 40^\\circ", "\\sin 50^\\circ"),
    ),
    *_rows(
        "expressions", "positive", A,
        ("T", "\\tan x", "\\frac{\\sin x}{\\cos x}"), ("T", "\\sin 2x", "2 \\sin x \\cos x"), ("T", "\\sec^2 y", "1+\\tan^2 y"), ("T", "\\sqrt{x}", "x^{1/2}"),
        ("T", "\\frac{1}{\\sqrt{n}}", "\\sqrt{1/n}"), ("T", "\\frac{x^2-1}{x-1}", "x+1"), ("T", "\\frac{1}{x}+\\frac{1}{y}", "\\frac{x+y}{xy}"),
        ("T", "2^{n+1}", "2 \\cdot 2^n"), ("T", "\\frac{n(n+1)}{2}", "\\binom{n+1}{2}"), ("T", "n!", "n \\cdot (n-1)!"), ("T", "e^{x+y}", "e^x e^y"),
        ("T", "\\ln(xy)", "\\ln x + \\ln y"), ("T", "\\lceil n/2 \\rceil", "\\lfloor (n+1)/2 \\rfloor"), ("T", "a_1+a_2", "a_{2}+a_{1}"), ("T", "\\theta^2", "\\theta \\cdot \\theta"),
        ("T", "|x|", "\\sqrt{x^2}"), ("T", "\\frac{a}{b}", "a/b"), ("T", "\\cosh x", "\\frac{e^x+e^{-x}}{2}"), ("T", "x^3", "x**3"), ("T", "(-1)^{n+1}", "-(-1)^n"),
        ("T", "x(x+1)^{20}", "(x+1)^{20}x"), ("T", "\\frac{1}{2}ab\\sin C", "\\frac{ab \\sin C}{2}"), ("T", "xy", "yx"), ("T", "\\frac{dy}{dx}=2x", "2x"),
    ),
    *_rows(
        "equations", "positive", A,
        ("T", "y = 2x+3", "f(x) = 2x + 3"), ("T", "2x+3", "y = 2x+3"), ("T", "2x - y + 1 = 0", "y = 2x+1"), ("T", "34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
        ("T", "\\frac{x^2}{4}+\\frac{y^2}{3}=1", "3x^2+4y^2=12"), ("T", "x=5", "5"), ("T", "5", "5=x"), ("T", "x=2, y=3", "(x,y)=(2,3)"), ("T", "(2,3)", "x=2, y=3"),
        ("T", "x=\\pm 2", "x=2 \\text{ or } x=-2"), ("T", "a_1=1, a_2=4", "a_2=4, a_1=1"), ("T", "A = \\pi r^2", "\\pi r^2"), ("T", "12", "a+b=12"), ("T", "5", "|AB|=5"),
        ("T", "x^2+y^2=25", "25 - x^2 - y^2 = 0"),
    ),
    *_rows(
        "inequalities and sets", "positive", A,
        ("T", "x > 5", "5 < x"), ("T", "x<1", "-x > -1"), ("T", "x \\ge 2", "[2, \\infty)"), ("T", "x \\ge 2", "2x \\geq 4"), ("T", "x \\ne 3", "(-\\infty,3)\\cup(3,\\infty)"),
        ("T", "\\{x \\mid x > 0\\}", "(0, \\infty)"), ("T", "\\emptyset", "\\varnothing"), ("T", "\\{1,2\\}", "\\{2,1,1\\}"), ("T", "\\{1,2\\}", "1, 2"),
        ("T", "\\emptyset", "\\text{no solution}"), ("T", "(-\\infty,\\infty)", "\\mathbb{R}"), ("T", "[0,1] \\cup [1,2]", "[0,2]"), ("T", "\\mathbb{R}\\setminus\\{0\\}", "x \\neq 0"),
        ("T", "[\\sqrt{2}, 2)", "\\sqrt{2} \\le t < 2"), ("T", "\\{x \\in \\mathbb{R} : x \\le 1\\}", "x \\le 1"), ("T", "x > 0 \\text{ and } x < 1", "(0,1)"),
    ),
    *_rows(
        "congruences, ratios, times", "positive", A,
        ("T", "x \\equiv 3 \\pmod{7}", "x \\equiv 10 \\pmod 7"), ("T", "2:3", "4:6"), ("T", "2:3", "\\frac{2}{3}"), ("T", "1:2:3", "2:4:6"), ("T", "12:30", "12:30"),
        ("T", "\\text{4:30 p.m.}", "4:30 \\text{ PM}"), ("T", "4:30 \\text{ p.m.}", "4:30 pm"), ("T", "V_1:V_2=11:21", "11:21"),
    ),
    *_rows(
        "words and choices", "positive", A,
        ("T", "B", "(B)"), ("T", "B", "\\textbf{(B)}"), ("T", "\\text{(B)}", "B"), ("T", "B", "B."), ("T", "B", "(B) 12"), ("T", "\\text{east}", "East"), ("T", "Evelyn", "\\text{evelyn}"),
        ("T", "\\text{odd}", "odd"), ("T", "Yes", "yes"), ("T", "\\text{ellipse}", "\\mathrm{ellipse}"), ("T", "A, C", "C \\text{ and } A"), ("T", "\\text{Navin}", "\\text{ Navin }."),
    ),
    *_rows(
        "bases", "positive", A, ("T", "52_8", "52_{8}"), ("T", "4210_5", "(4210)_5"), ("T", "1011_2", "1011_{2}"),
    ),
    *_rows(
        "vectors and matrices", "positive", A,
        ("T", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "(1,2)"), ("T", "\\begin{pmatrix}1 & 2 \\\\ 3 & 4\\end{pmatrix}", "\\left[\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right]"),
        ("T", "\\begin{pmatrix} 1/2 \\\\ 0 \\end{pmatrix}", "\\begin{pmatrix} 0.5 \\\\ 0 \\end{pmatrix}"), ("T", "\\begin{pmatrix} x & 1 \\\\ 0 & x \\end{pmatrix}", "A = \\begin{bmatrix} x & 1 \\\\ 0 & x \\end{bmatrix}"),
        ("T", "(1,2,3)", "\\langle 1, 2, 3 \\rangle"),
    ),
    *_rows(
        "place in a response", "positive", R,
        ("T", "18", "She has 9 + 9 = 18 dollars.\n#### 18"), ("T", "18", "The answer is 18."), ("T", "18", "**Answer:** 18"), ("T", "18", "The final answer is $18$. I hope it is correct."),
        ("T", "1, 2", "\\boxed{1} and \\boxed{2}"), ("T", "(1,2), (3,4)", "$$\\boxed{(1,2)} \\quad\\text{and}\\quad \\boxed{(3,4)}$$"), ("T", "7", "\\fbox{7}"), ("T", "7", "\\boxed{\\boxed{7}}"),
        ("T", "7", "\\boxed{7}\n\n\\boxed{7}"), ("T", "7", "\\boxed 7"), ("T", "\\frac{1}{2}", "so $\\boxed{\\frac{1}{2}}$ as claimed. \\boxed{"), ("T", "42", "\\boxed{\\text{42}}}"), ("T", "12\\text{ and }13", "\\boxed{12 $ and $ 13}"),
    ),
]  # fmt: skip

_NEGATIVE: list[HandWritten] = [
    *_rows(
        "numbers", "negative", A,
        ("F", "\\frac{1}{3}", "0.333333333333"), ("F", "\\sqrt{2}", "1.41421356"), ("F", "\\pi", "3.14159265"), ("F", "\\pi", "\\frac{22}{7}"), ("F", "10^{20}", "10^{20}+1"),
        ("F", "2^{100}", "2^{100}+1"), ("F", "\\frac{1}{2004!}", "\\frac{1}{2006!}"), ("F", "10^{-9}", "10^{-12}"), ("F", "0", "10^{-30}"), ("F", "6.02\\times 10^{23}", "6.03\\times 10^{23}"),
        ("F", "12\\frac{3}{5}", "12 \\cdot \\frac{3}{5}"), ("F", "12", "1, 2"), ("F", "12", "21"), ("F", "0.5", "50"), ("F", "50\\%", "5\\%"), ("F", "\\sqrt{2}+\\sqrt{3}", "\\sqrt{5}"),
        ("F", "\\sqrt{2}", "\\sqrt{2}+10^{-15}"), ("F", "e", "2.718281828"), ("F", "52_8", "52_9"), ("F", "1.5", "1:5"), ("F", "\\infty", "-\\infty"), ("F", "\\infty", "1000000"), ("F", "i", "-i"),
        ("F", "5\\text{ cm}", "5\\text{ m}"), ("F", "5\\text{ hours}", "5\\text{ minutes}"), ("F", "45", "\\frac{3}{4}\\text{ hours}"), ("F", "90^\\circ", "45^\\circ"), ("F", "\\frac{\\pi}{6}", "60^\\circ"),
    ),
    *_rows(
        "expressions", "negative", A,
        ("F", "(a+b)^2", "a^2+b^2"), ("F", "\\sin 2x", "2 \\sin x"), ("F", "x^{2y}", "x^{2+y}"), ("F", "\\sqrt{x^2}", "x"), ("F", "n(n+1)", "n(n-1)"), ("F", "2^{n+1}", "2^n"), ("F", "\\ln(x+y)", "\\ln x + \\ln y"),
        ("F", "f(x)", "f(y)"), ("F", "a", "A"), ("F", "x_1", "x_2"), ("F", "\\frac{a}{b}", "\\frac{b}{a}"), ("F", "e^{-x}", "e^x"), ("F", "x+1", "x+1.000000001"), ("F", "\\sum_{k=1}^n k", "\\sum_{k=1}^n k^2"),
    ),
    *_rows(
        "relations", "negative", A,
        ("F", "x=5", "y=6"), ("F", "x=1", "x^2=1"), ("F", "x=1", "x=x"), ("F", "y=2x+1", "x=2y+1"), ("F", "y=2x+1", "y=2x-1"), ("F", "x>3", "x \\ge 3"), ("F", "x>3", "x<3"), ("F", "x \\ne 7", "7"), ("F", "7", "x \\ne 7"),
        ("F", "7", "x \\ge 7"), ("F", "x \\equiv 3 \\pmod 7", "x \\equiv 4 \\pmod 7"), ("F", "x \\equiv 3 \\pmod 7", "x \\equiv 3 \\pmod 8"), ("F", "4:3", "3:4"), ("F", "12:00", "1:00"), ("F", "1:2:3", "1:4:9"),
        ("F", "4:30 \\text{ p.m.}", "4:30 \\text{ a.m.}"), ("F", "a^2+b=0", "0"), ("F", "x+y=1", "x+y=2"), ("F", "x^2+y^2=25", "x^2+y^2=5"),
    ),
    *_rows(
        "structures", "negative", A,
        ("F", "(1,2)", "[1,2]"), ("F", "(8,-2)", "(-\\infty,-2] \\cap [-1,\\infty)"), ("F", "(1,2)", "\\{1,2\\}"), ("F", "(3,1)", "3, 1"), ("F", "\\{1,2\\}", "\\{1,2,3\\}"), ("F", "\\emptyset", "\\{0\\}"), ("F", "0", "\\emptyset"), ("F", "\\pm 2", "2"), ("F", "2", "\\pm 2"),
        ("F", "[0,1]", "[0,1] \\cup \\{5\\}"), ("F", "(0,1)\\cup(1,2)", "(0,2)"), ("F", "\\mathbb{R}", "\\mathbb{Z}"), ("F", "\\mathbb{R}", "(0,\\infty)"), ("F", "1, 2, \\ldots, n", "1, 3, \\ldots, 2n-1"),
        ("F", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}"), ("F", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"), ("F", "[1,2)", "[x,y)"),
        ("F", "(1, \\frac{9}{2})", "(1, 4.49)"),
    ),
    *_rows(
        "words and choices", "negative", A,
        ("F", "B", "C"), ("F", "B", "ABCD"), ("F", "C", "B=C"), ("F", "\\text{odd}", "even"), ("F", "\\text{even}", "\\text{not even}"), ("F", "Evelyn", "Carla"), ("F", "Yes", "No"), ("F", "\\text{Between 3 and 4}", "\\text{Between 4 and 5}"),
        ("F", "5", "unknown"), ("F", "\\text{Tuesday}", "7"), ("F", "A", "\\text{This is a guess}"),
    ),
    *_rows(
        "place in a response", "negative", R,
        ("F", "2", "\\boxed{1} and \\boxed{2}"), ("F", "2", "\\boxed{2} ... wait, no. \\boxed{3}"), ("F", "7", "\\boxed{8}. Final answer is 7."), ("F", "46", "#### 46\nOr rather\n#### 47"), ("F", "7", ""), ("F", "7", "\\boxed{}"),
        ("F", "7", "The answer is 7. Wait, that is not right, since the sum has to be even and all terms were counted twice.\n\nLet me look at the second case again, where"),
    ),
]  # fmt: skip

_EXPLOIT: list[HandWritten] = [
    *_rows(
        "covering", "exploit", A,
        ("F", "7", "[0,100]"), ("F", "7", "\\mathbb{R}"), ("F", "7", "\\mathbb{Z}"), ("F", "7", "6 < x < 8"), ("F", "7", "7 \\pm 1"), ("F", "7", "\\{1,2,3,4,5,6,7,8,9\\}"), ("F", "7", "1,2,3,4,5,6,7,8,9,10"),
        ("F", "(2,3)", "(-\\infty,\\infty)"), ("F", "7", "7 \\text{ or } 8"), ("F", "7", "\\pm 7"), ("F", "B", "A, B, C, D"),
    ),
    *_rows(
        "placeholder", "exploit", A,
        ("F", "7", "n"), ("F", "7", "x"), ("F", "7", "\\text{answer}"), ("F", "7", "answer"), ("F", "7", "\\text{nan}"), ("F", "7", "\\infty"), ("F", "7", "\\frac{1}{0}"), ("F", "7", "\\frac{0}{0}"), ("F", "7", "?"), ("F", "7", "\\ldots"),
        ("F", "7", "f(7)"), ("F", "7", "7x"), ("F", "0", "0x"), ("T!", "7", "x - x + 7"), ("F", "7", "\\text{True}"), ("F", "7", "\\_"), ("T!", "5", "5x^0"),
    ),
    *_rows(
        "talking", "exploit", A,
        ("F", "7", "7\\text{ is wrong, it is 8}"), ("F", "7", "\\text{not } 7"), ("F", "7", "\\text{either 7 or 8}"), ("F", "7", "7\\text{ if lucky, else 8}"), ("F", "7", "7=7 \\text{ or } 8=8"), ("F", "7", "8 % 7\n"),
    ),
    *_rows(
        "outside the answer", "exploit", R,
        ("F", "7", "\\boxed{5}. My lucky number is 7"), ("F", "7", "I cannot solve it. See page 7."), ("F", "46", "\\boxed{} 46"), ("F", "7", "<think>\\boxed{7}"), ("F", "7", "<think>maybe \\boxed{7}</think> The answer is 8."),
        ("F", "7", "Final answer is $7$. But really \\boxed{8}"),
    ),
    *_rows(
        "code", "exploit", A,
        ("F", "42", "__import__('os').system('true')"), ("F", "42", "open('nowhere','r')"), ("F", "42", "(lambda: 42)()"), ("F", "42", "eval('42')"), ("F", "42", "42 if True else 0"), ("F", "42", "sympify('42')"), ("F", "42", "\\frac{open(1)}{2}"),
        ("F", "42", "exec(chr(52))"), ("F", "42", "{42}.pop()"), ("F", "42", "\\input{42}"),
    ),
]  # fmt: skip

_DEEP = "2" + "^{2" * 300 + "}" * 300
_PATHOLOGICAL: list[HandWritten] = [
    *_rows(
        "huge numbers", "pathological", A,
        ("F", "42", "9^{9^{9^9}}"), ("F", "42", "9**9**9**9"), ("F", "42", "10^{10^{10}}"), ("F", "42", "1000000000!"), ("F", "42", "((9!)!)!"), ("F", "42", "1e999999999"), ("F", "42", "\\binom{10^9}{10^8}"), ("F", "x", "x^{10^{10}}"),
        ("F", "42", "1" * 3000), ("F", "42", "0." + "3" * 3000), ("F", "42", "\\cdot".join(["99999999"] * 150)), ("F", "42", "10^{-1000000000}"),
    ),
    *_rows(
        "deep", "pathological", A,
        ("F", "42", _DEEP), ("F", "42", "\\frac{1+" * 150 + "1" + "}{2}" * 150), ("F", "42", "(" * 400 + "1" + ")" * 400), ("F", "42", "\\sqrt{2+" * 150 + "2" + "}" * 150), ("F", "42", "x_{" * 200 + "x" + "}" * 200),
        ("F", "42", "-" * 1500 + "41"), ("F", "42", "|" * 500), ("F", "42", "!" * 500), ("F", "42", "2" + "^-" * 500 + "2"),
    ),
    *_rows(
        "long", "pathological", A,
        ("F", "42", ", ".join(map(str, range(2000)))), ("F", "42", "x" + "=1" * 1500), ("F", "42", "\\text{" + "word " * 5000 + "}"), ("F", "42", "+".join(["x"] * 5000)),
        ("F", "42", " \\cup ".join(f"({2 * k},{2 * k + 1})" for k in range(200))),
    ),
    *_rows(
        "garbage", "pathological", R,
        ("F", "42", "\x00" * 200), ("F", "42", "a" * 50_000), ("F", "42", "$" * 5000), ("F", "42", "\\boxed{" * 3000), ("F", "42", "{" * 5000), ("F", "42", "\\" * 5001), ("F", "42", "####" * 2000), ("F", "42", "answer is " * 3000),
        ("F", "42", "\\boxed{1} and " * 2000), ("F", "42", "<think>" * 1000), ("F", "42", "\\boxed{%d}"), ("F", "42", "\\boxed{\ud83d\ude00}"), ("F", "42", "The answer is \udcff \\boxed{4}"), ("F", "42", "\\boxed{" + "{" * 500 + "}" * 500 + "}"),
        ("F", "42", "\\begin{pmatrix}" * 200), ("F", "42", "\\boxed{\\begin{pmatrix}1&2\\\\3\\end{pmatrix}}"), ("F", "42", "\\boxed{\\frac}"), ("F", "42", "\\boxed{\\frac{1}}"), ("F", "42", "\\boxed{^}"), ("F", "42", "\\boxed{1,,2}"),
    ),
]  # fmt: skip

HAND_WRITTEN: list[HandWritten] = [*_POSITIVE, *_NEGATIVE, *_EXPLOIT, *_PATHOLOGICAL]
