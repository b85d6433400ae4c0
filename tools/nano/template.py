"""Renders conversations with the model's own chat template, exactly as an
engine does: jinja2 with the environment that transformers uses (trimmed
blocks, a `tojson` that neither escapes HTML nor sorts keys)."""
import json
import pathlib

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MODEL_DIR = pathlib.Path(__file__).resolve().parents[2] / "models" / "lily-nano"


def _raise(message):
    raise ValueError(message)


def _tojson(value, indent=None):
    return json.dumps(value, ensure_ascii=False, indent=indent)


_env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
_env.filters["tojson"] = _tojson
_env.globals["raise_exception"] = _raise
_template = _env.from_string((MODEL_DIR / "chat_template.jinja").read_text())


def prompt(messages, tools=None, enable_thinking=False):
    """The text that the model continues."""
    return _template.render(
        messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=enable_thinking
    )


def conversation(messages, tools=None):
    """The whole conversation with its answers, no generation prompt."""
    return _template.render(messages=messages, tools=tools, add_generation_prompt=False)


def call_text(calls):
    """The tool-call XML of an assistant turn: [(name, {key: value})] -> text."""
    out = []
    for name, arguments in calls:
        lines = [f"<tool_call>\n<function={name}>\n"]
        for key, value in arguments.items():
            text = value if isinstance(value, str) else _tojson(value)
            lines.append(f"<parameter={key}>\n{text}\n</parameter>\n")
        lines.append("</function>\n</tool_call>")
        out.append("".join(lines))
    return "\n".join(out)
