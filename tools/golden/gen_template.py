"""Golden part (c): conversations rendered by transformers' own template function, hence by Python's jinja2
with its environment (sandbox, trim_blocks, lstrip_blocks, loop controls, its tojson and raise_exception)."""
import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from common import COMMITTED, versions, write_json, write_jsonl
from template_cases import conversations, snippets

TEMPLATE = COMMITTED / "template" / "qwen_style.jinja"


def outcome(render):
    """{"rendered": text}, or {"error": text, "raised": whether raise_exception made it}."""
    try:
        return {"rendered": render()}
    except jinja2.exceptions.TemplateError as err:
        return {"error": str(err), "raised": type(err) is jinja2.exceptions.TemplateError}
    except TypeError as err:
        return {"error": str(err), "raised": False}


def generate(root):
    source = TEMPLATE.read_text(encoding="utf-8")
    folder = root / "template"
    if folder != TEMPLATE.parent:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TEMPLATE.name).write_text(source, encoding="utf-8")
    rows = []
    for name, messages, tools, kwargs in conversations():
        kwargs = {"add_generation_prompt": True, **kwargs}
        got = outcome(lambda: render_jinja_template([messages], tools=tools, chat_template=source, **kwargs)[0][0])
        assert ("error" in got) == name.startswith("error:"), (name, got)
        assert got.get("raised", True), (name, got)
        rows.append({"name": name, "messages": messages, "tools": tools, "kwargs": kwargs, **got})
    write_jsonl(folder / "conversations.jsonl", rows)
    small = []
    for template, context in snippets():
        got = outcome(lambda: _compile_jinja_template(template).render(**context))
        small.append({"template": template, "context": context, **got})
    write_jsonl(folder / "snippets.jsonl", small)
    write_json(folder / "template.json", {"versions": versions("jinja2", "transformers"), "conversations": len(rows), "snippets": len(small)})
    print(f"template: {len(rows)} conversations, {len(small)} snippets")
