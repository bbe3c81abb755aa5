"""The base of all sections of a configuration, and what a change of a key does on resume."""

from enum import Enum

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError


class OnChange(Enum):
    """What happens when a run is resumed with a different value of a key; for the reference."""

    REFUSED = "fixed for a run"
    """Training stops with an error: it would no longer be the same run."""
    SHAPES_CORPUS = "fixed for a run and its prepared text"
    """Refused too; the value is also part of the fingerprint of the prepared corpus."""
    ENDS_BIT_EQUALITY = "may change on resume, which ends bit-equality"
    """Training continues, but the result differs in rounding or dropout masks."""
    ALLOWED = "may change on resume"
    """Training continues, and every step is the same as without the change."""


INTEGER_LIMIT = 2**32
"""All integers of a configuration are smaller, so that no size or count exceeds 64 bits."""


class Section(BaseModel):
    """Base of all sections; the `Annotated` type of each key declares an `OnChange`."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_large_integers(cls, value: object) -> object:
        if isinstance(value, int) and value >= INTEGER_LIMIT:
            raise PydanticCustomError("large_integer", f"should be less than {INTEGER_LIMIT}")
        return value
