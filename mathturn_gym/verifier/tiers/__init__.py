"""Tiers: the comparisons that are made in the calling process, each certain of what it says.

    _decide      the order of the tiers: exact, rational, text, structure; which answers are finished numbers
    _structure   trees: lists, tuples, sets, matrices, relations, down to the scalars in them
    _relations   equations, congruences, ratios; inequalities and sets of real numbers
    _scalar      the same number, the same function? refuted by floats, confirmed by exact, modular or 60-digit arithmetic
    _fields, _precise   these arithmetics

All of it is internal.
"""
