r"""Names of LaTeX's commands: what begins with a backslash and is none of these is no mathematics (`\assistant`)."""

from __future__ import annotations

from typing import Final

__all__ = ["COMMANDS"]

# Greek; fractions, roots, functions; operations and relations; arrows; delimiters; accents, and what is drawn around; fonts,
# colors and sizes; dots, spaces, rows; signs. Only names of four letters and more are looked up: short ones may be anybody's macros.
_NAMES: Final = """
alpha beta gamma delta epsilon varepsilon zeta theta vartheta iota kappa varkappa lambda sigma varsigma upsilon omega
varphi varpi varrho Gamma Delta Theta Lambda Sigma Upsilon Omega digamma aleph beth ell hbar imath jmath
frac dfrac tfrac cfrac sqrt binom dbinom tbinom choose over atop arcsin arccos arctan arccot arcsec arccsc arctg sinh
cosh tanh coth limsup liminf prod coprod iint iiint oint bigcup bigcap bigsqcup bigvee bigwedge bigoplus bigotimes
bigodot bigtriangleup bigtriangledown argmax argmin operatorname mathop mathbin mathrel mathord injlim projlim
cdot cdots cdotp times divideontimes circ bullet star oplus ominus otimes odot oslash wedge setminus smallsetminus
bmod pmod approx approxeq simeq cong equiv doteq propto leqq leqslant geqq geqslant less gtrsim lesssim prec succ
preceq succeq notin subset supset subseteq supseteq subsetneq supsetneq nsubseteq parallel nparallel perp mid nmid
land lnot forall exists nexists emptyset varnothing infty partial nabla prime backprime degree angle measuredangle
sphericalangle triangle square blacksquare Box Diamond diamond lozenge therefore because models vdash dashv asymp ll
gg amalg uplus sqcap sqcup mapsto
rightarrow leftarrow Rightarrow Leftarrow longrightarrow longleftarrow Longrightarrow Longleftarrow leftrightarrow
Leftrightarrow longleftrightarrow Longleftrightarrow uparrow downarrow Uparrow Downarrow updownarrow searrow nearrow
swarrow nwarrow hookrightarrow hookleftarrow xrightarrow xleftarrow longmapsto implies impliedby rightharpoonup
leftharpoonup rightleftharpoons
left right bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigg Bigg bigm Bigm middle langle rangle lvert rvert lVert
rVert vert Vert lfloor rfloor lceil rceil lbrace rbrace lbrack rbrack lparen rparen lgroup rgroup backslash
overline underline overbrace underbrace overset underset overrightarrow overleftarrow overleftrightarrow overparen
overarc widehat widetilde hat bar tilde acute grave breve check dddot mathring vec arc stackrel substack boxed fbox
framebox cancel bcancel xcancel cancelto sout not phantom hphantom vphantom smash
text textbf textit textrm textsf texttt textnormal textsc textup textmd textcolor color colorbox fcolorbox mathrm
mathbf mathit mathsf mathtt mathcal mathbb mathfrak mathscr mathnormal boldsymbol bold emph mbox hbox vbox ensuremath
displaystyle textstyle scriptstyle scriptscriptstyle tiny small large Large LARGE huge Huge normalsize footnotesize
scriptsize itshape bfseries rmfamily
dots ldots vdots ddots dotsb dotsc dotsm dotsi dotso quad qquad hspace vspace hfill hskip mskip enspace thinspace
medspace thickspace negthinspace space begin end hline cline multicolumn multirow nonumber notag label tag newline
limits nolimits displaylimits mathstrut strut allowbreak noindent array cases matrix pmatrix bmatrix
dollar pounds euro yen percent copyright checkmark dagger ddagger star textdegree textdollar celsius degreeCelsius
complement eth mho Finv Game hslash Bbbk wp Re Im top bot flat natural sharp spadesuit heartsuit diamondsuit clubsuit
"""
COMMANDS: Final = frozenset(_NAMES.split())
