"""The paired t-test: whether two settings differ by more than their seeds do."""

import math
import statistics
from collections.abc import Sequence

from mpmath import betainc


def paired_t_test(differences: Sequence[float]) -> dict[str, float]:
    """Tests whether the mean of differences may be zero, given two or more.

    For n differences of mean d and sample standard deviation s, t = d / (s / sqrt(n)). If they are
    normally distributed around zero, it has Student's distribution with df = n - 1.

    Returns:
        By title: d, s, and, unless all are equal, t, df, and p, the probability of a t at least as
        far from zero, I_x(df / 2, 1 / 2) with x = df / (df + t^2).
    """
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    result = {"difference": mean, "std. dev.": deviation}
    if deviation:
        t, df = mean / (deviation / math.sqrt(len(differences))), len(differences) - 1
        p = betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True)
        result |= {"t": t, "df": df, "p": float(p)}
    return result
