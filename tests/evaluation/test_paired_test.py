"""The paired t-test of `compare --baseline`."""

import pytest

from transformer_mt.evaluation.paired_test import paired_t_test

SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
"""Student's example (The Probable Error of a Mean, 1908): hours of sleep that a drug adds."""


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        (SLEEP, (1.58, 1.23, 4.0621, 9, 0.002833)),
        ([-each for each in SLEEP], (-1.58, 1.23, -4.0621, 9, 0.002833)),
        ([0.0, 1.0, 2.0], (1.0, 1.0, 3**0.5, 2, 1 - (3 / 5) ** 0.5)),  # df 2: 1 - t / sqrt(2 + t^2)
        ([0.0, 2.0], (1.0, 2**0.5, 1.0, 1, 0.5)),  # df 1: the Cauchy distribution
        ([-1.0, 1.0], (0.0, 2**0.5, 0.0, 1, 1.0)),
    ],
)
def test_values_of_tables(differences, expected):
    """In either direction. Sabotage: one side; n for n - 1; the deviation of the population."""
    assert tuple(paired_t_test(differences).values()) == pytest.approx(expected, rel=1e-4)


def test_equal_differences_have_no_t():
    assert paired_t_test([0.5, 0.5]) == {"difference": 0.5, "std. dev.": 0.0}
