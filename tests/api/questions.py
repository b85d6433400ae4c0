"""What the Python scripts ask of lily-nano."""

import os
from typing import Annotated, Literal

from pydantic import BaseModel, Field

MODEL = "lily-nano"
OPENAI = os.environ["OPENAI_BASE_URL"]
ANTHROPIC = os.environ["ANTHROPIC_BASE_URL"]
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
WEATHER = [{"role": "user", "content": "What is the weather in Rome for 3 days?"}]
SUM = [{"role": "user", "content": "What is 17 + 25?"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Paris"]
    days: Annotated[int, Field(ge=0, le=99)]


def check(name, condition, shown=""):
    if not condition:
        raise SystemExit(f"FAILED {name}: {shown}")
    print("ok", name)
