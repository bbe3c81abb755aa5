"""The limits that end training, by hand."""

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.config.loading import parse_config
from transformer_mt.training.limits import stop_limits

PROGRESS = Progress(step=7, epoch=1, epoch_step=3, validations_since_best=2)


def limits_of(train: dict[str, object], patience: int = 0, seconds: float = 30.0):
    values = {"data": {"path": "none"}, "train": train, "valid": {"patience": patience}}
    return stop_limits(parse_config(values, "tests"), PROGRESS, seconds)


def test_only_limits_that_are_set_are_listed():
    """Zero is no limit, but for the number of steps, which is always limited."""
    [limit] = limits_of({"max_steps": 10})
    assert (limit.key, limit.left, limit.unit) == ("train.max_steps = 10", 3, "steps")


def test_what_is_left():
    """In the unit of each limit, in the order in which they are reported."""
    limits = limits_of({"max_steps": 7, "max_epochs": 3, "max_minutes": 2.5}, patience=5)
    assert [(limit.key, limit.left, limit.unit) for limit in limits] == [
        ("train.max_steps = 7", 0, "steps"),
        ("train.max_epochs = 3", 2, "epochs"),
        ("train.max_minutes = 2.5", 120.0, "seconds"),
        ("valid.patience = 5", 3, "validations"),
    ]
