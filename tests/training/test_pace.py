"""The time left of a training, by hand."""

import pytest

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.loading import parse_config
from transformer_mt.training.limits import stop_limits
from transformer_mt.training.pace import Pace, Schedule, estimate_time_left

PROGRESS = Progress(step=7, epoch=1, epoch_step=3)
SCHEDULE = Schedule(steps_per_epoch=11, steps_per_validation=5)


def time_left(train: dict[str, object], progress: Progress = PROGRESS, validation: float = 0.0):
    """Estimates with 4 seconds per step, 30 seconds after the start."""
    config = parse_config({"data": {"path": "none"}, "train": train}, "tests")
    pace = Pace(step_seconds=4.0)
    pace.add_validation(validation)
    return estimate_time_left(stop_limits(config, progress, 30.0), progress, SCHEDULE, pace)


@pytest.mark.parametrize(
    ("limits", "steps", "seconds"),
    [
        ({"max_steps": 10}, 3, 12.0),
        ({"max_steps": 5}, 0, 0.0),
        ({"max_steps": 100, "max_epochs": 3}, 2 * 11 - 3, 76.0),
        ({"max_steps": 100, "max_epochs": 3, "max_minutes": 1.0}, 7, 30.0),
    ],
)
def test_the_limit_that_is_reached_first_counts(limits, steps, seconds):
    """Whether it is in steps, epochs or minutes. Sabotage: know only max_steps."""
    left = time_left(limits)
    assert (left.steps, left.seconds) == (steps, seconds)
    assert left.key.startswith(f"train.{list(limits)[-1]} = ")


def test_validations_to_come_count():
    """Those at multiples of valid.every and the one at the end, each 20 seconds.

    Sabotage: count no validation; forget the last; count the one that is done.
    """
    for steps, validations in ((1, 1), (3, 1), (4, 2), (8, 2), (9, 3)):
        left = time_left({"max_steps": 7 + steps}, validation=20.0)
        assert left.seconds == 4 * steps + 20 * validations
    due, done = (Progress(step=10, valid_step=step) for step in (5, 10))
    for progress, validations in ((due, 2), (done, 1)):
        left = time_left({"max_steps": 15}, progress, validation=20.0)
        assert left.seconds == 4 * 5 + 20 * validations


@pytest.mark.parametrize("limits", [{"max_steps": 7}, {"max_steps": 100, "max_minutes": 0.5}])
def test_nothing_is_left_after_the_last_validation(limits):
    """Before it, the time of the validation is. Sabotage: always expect one more."""
    for valid_step, seconds in ((5, 20.0), (7, 0.0)):
        progress = Progress(step=7, valid_step=valid_step)
        assert time_left(limits, progress, validation=20.0).seconds == seconds


def test_minutes_include_all_validations_but_the_last():
    """The clock of train.max_minutes runs during validations too, and fewer steps fit."""
    left = time_left({"max_steps": 1000, "max_minutes": 2.5}, validation=20.0)
    assert (left.steps, left.seconds) == (int(120 / (4 + 20 / 5)), 120.0 + 20.0)


def test_the_first_step_warms_up():
    """It is all that is known until the second; validations are no part of a step."""
    pace = Pace()
    pace.add_validation(50.0)  # one that an interrupted run made up
    pace.start(100.0)
    pace.count_step(160.0)
    assert pace.step_seconds == 60.0
    pace.count_step(162.0)
    assert pace.step_seconds == 2.0
    pace.add_validation(7.0)
    pace.count_step(173.0)
    assert (pace.step_seconds, pace.validation_seconds) == (3.0, 7.0)
