"""Reading: from a response to its answer, from an answer to one spelling, a value, words or trees.

    _delimiters   boxes and formulas: what delimiters mark
    _statements   the value that a sentence tells
    _extraction   response -> answer: boxes, `####`, "answer is" …
    _cleaning     one spelling for what is written in many ways
    _numbers      literal integers, decimals, fractions; units of measurement
    _phrases      words around a value: those that introduce it, count by it, or change it
    _words        names, choices, numbers spelt out, times of day
    _lexer, _parser, _nodes   a small grammar: tokens, trees, and the visitors that walk them
    _prepared     all of it for one text, made once; questions about an answer alone

All of it is internal; `mathturn_gym.verifier` has the names for others.
"""
