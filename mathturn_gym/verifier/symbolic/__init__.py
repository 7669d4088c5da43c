"""Symbolic work: math-verify and sympy in processes of their own, bounded in time and memory, shared by all verifiers.

    _pool     the caller's side: tickets, waiting, restarts
    _worker   the other side: a supervisor that forks workers; run as a file, imports nothing of this package

All of it is internal.
"""
