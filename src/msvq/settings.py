"""The base of every block of settings. Each block stands beside the code that it configures."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Settings that know their keys and types, and do not change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
