//! Settings that make other programs talk to this server, ready to paste; `docs/clients.md` is made of the same texts.

use clap::ValueEnum;

/// Where the settings have the base address, model, context and key, they have these. Texts stand in double quotes wherever the format has
/// them, as a model may be called anything.
const BASE: &str = "{base}";
const MODEL: &str = "{model}";
const CONTEXT: &str = "{context}";
const OUTPUT: &str = "{output}";
/// Clients that ask for a key take any text where the server asks for none.
const NO_KEY: &str = "lily";

/// Programs whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// Codex CLI.
    Codex,
    /// Claude Code.
    Claude,
    /// OpenCode.
    Opencode,
    /// Qwen Code.
    Qwen,
    /// Zed.
    Zed,
    /// Continue.
    Continue,
    /// Open WebUI.
    Openwebui,
    /// Xcode.
    Xcode,
}

/// A program, the file its settings go into, and the settings.
struct Settings {
    name: &'static str,
    place: &'static str,
    text: &'static str,
    /// What a user has to know besides.
    note: &'static str,
}

const CODEX: Settings = Settings {
    name: "Codex CLI",
    place: "~/.codex/config.toml",
    text: r#"model = "{model}"
model_provider = "lily"
model_context_window = {context}

[model_providers.lily]
name = "lily"
base_url = "{base}/v1"
wire_api = "responses"
{codex key}stream_idle_timeout_ms = 3600000
"#,
    note: "A key is taken from the environment, LILY_API_KEY.",
};

const CLAUDE: Settings = Settings {
    name: "Claude Code",
    place: "~/.claude/settings.json",
    text: r#"{
  "env": {
    "ANTHROPIC_BASE_URL": "{base}",
    "ANTHROPIC_AUTH_TOKEN": "{key}",
    "ANTHROPIC_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context}",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{output}"
  }
}
"#,
    note: "The base URL goes without /v1. Its first prompt has about 25,000 tokens: give the server --context 65536 or more.",
};

const OPENCODE: Settings = Settings {
    name: "OpenCode",
    place: "opencode.json",
    text: r#"{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "lily": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "lily",
      "options": { "baseURL": "{base}/v1", "apiKey": "{key}", "includeUsage": true },
      "models": {
        "{model}": {
          "name": "{model}",
          "reasoning": true,
          "tool_call": true,
          "limit": { "context": {context}, "output": {output} }
        }
      }
    }
  },
  "model": "lily/{model}"
}
"#,
    note: "",
};

const QWEN: Settings = Settings {
    name: "Qwen Code",
    place: "~/.qwen/settings.json",
    text: r#"{
  "modelProviders": {
    "openai": [
      {
        "id": "{model}",
        "name": "{model}",
        "baseUrl": "{base}/v1",
        "envKey": "LILY_API_KEY",
        "generationConfig": {
          "contextWindowSize": {context},
          "streamIdleTimeoutMs": 3600000,
          "samplingParams": { "max_tokens": {output} }
        }
      }
    ]
  },
  "env": { "LILY_API_KEY": "{key}" },
  "security": { "auth": { "selectedType": "openai" } },
  "model": { "name": "{model}" }
}
"#,
    note: "A key in the environment, LILY_API_KEY, goes before the one in the settings.",
};

const ZED: Settings = Settings {
    name: "Zed",
    place: "~/.config/zed/settings.json",
    text: r#"{
  "language_models": {
    "openai_compatible": {
      "lily": {
        "api_url": "{base}/v1",
        "available_models": [
          {
            "name": "{model}",
            "display_name": "{model}",
            "max_tokens": {context},
            "max_output_tokens": {output},
            "capabilities": {
              "tools": true,
              "images": false,
              "parallel_tool_calls": true,
              "prompt_cache_key": true,
              "interleaved_reasoning": true
            }
          }
        ]
      }
    }
  }
}
"#,
    note: "Zed asks for the key in its settings, or takes it from LILY_API_KEY; any text where the server asks for none. \
Nobody has tried these settings with Zed yet.",
};

const CONTINUE: Settings = Settings {
    name: "Continue",
    place: "~/.continue/config.yaml",
    text: r#"name: lily
version: 0.0.1
schema: v1
models:
  - name: "{model}"
    provider: openai
    model: "{model}"
    apiBase: "{base}/v1"
    apiKey: "{key}"
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {context}
      maxTokens: {output}
"#,
    note: "",
};

const OPENWEBUI: Settings = Settings {
    name: "Open WebUI",
    place: "a shell",
    text: r#"docker run -d -p 3000:8080 --name open-webui \
  --add-host host.docker.internal:host-gateway \
  -e OPENAI_API_BASE_URL={docker}/v1 \
  -e OPENAI_API_KEY={key} \
  -e ENABLE_OLLAMA_API=false \
  -v open-webui:/app/backend/data \
  ghcr.io/open-webui/open-webui:main
"#,
    note: "From a container the server must be reachable: start it with --host 0.0.0.0 and a key (LILY_API_KEY). \
Nobody has tried these variables with Open WebUI yet.",
};

const XCODE: Settings = Settings {
    name: "Xcode",
    place: "Settings > Intelligence > Add a Model Provider > Locally Hosted",
    text: "Port: {port}\nDescription: lily\n",
    note: "Xcode is to list the models of the server and to speak chat completions with it. Nobody has tried these steps with Xcode yet.",
};

impl Client {
    fn settings(self) -> &'static Settings {
        match self {
            Client::Codex => &CODEX,
            Client::Claude => &CLAUDE,
            Client::Opencode => &OPENCODE,
            Client::Qwen => &QWEN,
            Client::Zed => &ZED,
            Client::Continue => &CONTINUE,
            Client::Openwebui => &OPENWEBUI,
            Client::Xcode => &XCODE,
        }
    }

    /// Its settings for a server.
    pub fn config(self, server: &Address) -> String {
        server.fill(self.settings().text)
    }

    /// Where the settings go, and what to know besides.
    pub fn advice(self) -> String {
        let settings = self.settings();
        let note = if settings.note.is_empty() { String::new() } else { format!(". {}", settings.note) };
        format!("{}: goes into {}{note}", settings.name, settings.place)
    }
}

/// A server as its clients see it.
pub struct Address {
    /// Host, with brackets where it is an IPv6 address.
    pub host: String,
    pub port: u16,
    pub model: String,
    pub context_tokens: usize,
    /// Whether the server asks for a key.
    pub key: bool,
}

impl Address {
    fn fill(&self, text: &str) -> String {
        // The key itself is a secret that does not belong on a screen.
        let key = if self.key { "YOUR_KEY" } else { NO_KEY };
        let codex_key = if self.key { "env_key = \"LILY_API_KEY\"\n" } else { "" };
        let output = (self.context_tokens / 4).max(1);
        // What JSON escapes within quotes, TOML and YAML escape in the same way.
        let model = serde_json::Value::from(self.model.as_str()).to_string();
        text.replace("{docker}", &format!("http://host.docker.internal:{}", self.port))
            .replace(BASE, &format!("http://{}:{}", self.host, self.port))
            .replace("{port}", &self.port.to_string())
            .replace("{key}", key)
            .replace("{codex key}", codex_key)
            .replace(CONTEXT, &self.context_tokens.to_string())
            .replace(OUTPUT, &output.to_string())
            .replace(MODEL, &model[1..model.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
    use serde_json::{Value, json};
    use std::fmt::Write;

    /// What a code block of the settings is labelled with.
    fn language(place: &str) -> &str {
        match place.rsplit_once('.') {
            Some((_, ending)) => ending,
            None if place == "a shell" => "sh",
            None => "text",
        }
    }

    /// The text of `docs/clients.md`.
    fn document() -> String {
        let server = Address {
            host: "127.0.0.1".into(),
            port: 8080,
            model: "Qwen3.6-35B-A3B-4bit".into(),
            context_tokens: 65536,
            key: false,
        };
        let mut text = String::from(
            "# Clients\n\n\
             Settings that make other programs talk to `lily serve`. A test makes this page of what `lily serve \
             --print-config CLIENT` prints,\nwhich has your own port, model and context in it. `cargo xtask agents` tries those of Codex CLI, Claude Code, \
             OpenCode, Qwen Code and Continue\nwith the programs themselves.\n\n\
             Every client that reads these variables needs nothing else:\n\n\
             ```sh\nOPENAI_BASE_URL=http://127.0.0.1:8080/v1\nOPENAI_API_KEY=lily\nANTHROPIC_BASE_URL=http://127.0.0.1:8080\n\
             ANTHROPIC_AUTH_TOKEN=lily\n```\n",
        );
        for client in Client::value_variants() {
            let settings = client.settings();
            let name = client.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
            let _ = write!(
                text,
                "\n## {}\n\n`lily serve --print-config {name}`; in {}:\n\n```{}\n{}```\n",
                settings.name,
                settings.place,
                language(settings.place),
                client.config(&server)
            );
            if !settings.note.is_empty() {
                let _ = write!(text, "\n{}\n", settings.note);
            }
        }
        text
    }

    #[test]
    fn the_document_is_what_is_printed() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/clients.md");
        if std::env::var_os("LILY_WRITE_GENERATED").is_some() {
            std::fs::write(&path, document()).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == document(), "docs/clients.md is old: run `cargo xtask codegen`");
    }

    /// A value of YAML, as far as the settings go: lists and tables of texts and whole numbers.
    fn yaml(events: &mut Parser<'_, StrInput<'_>>) -> Option<Value> {
        match events.next().expect("a document goes on").expect("the settings are YAML").0 {
            Event::StreamStart | Event::DocumentStart(_) => yaml(events),
            Event::Scalar(text, ScalarStyle::Plain, ..) => {
                Some(text.parse().map_or_else(|_| json!(text), Value::Number))
            }
            Event::Scalar(text, ..) => Some(json!(text)),
            Event::SequenceStart(..) => Some(std::iter::from_fn(|| yaml(events)).collect()),
            Event::MappingStart(..) => {
                let mut table = serde_json::Map::new();
                while let Some(key) = yaml(events) {
                    table.insert(key.as_str().expect("a name").to_owned(), yaml(events).expect("a value"));
                }
                Some(Value::Object(table))
            }
            _ => None,
        }
    }

    /// The settings as their program reads them, by the file's ending.
    fn read(place: &str, text: &str) -> Value {
        match language(place) {
            "json" => serde_json::from_str(text).unwrap(),
            "toml" => toml::from_str(text).unwrap(),
            "yaml" => yaml(&mut Parser::new_from_str(text)).unwrap(),
            other => panic!("nothing reads {other}"),
        }
    }

    /// What a program makes of its settings: the base URL, the key (none where there is no place for one), the model's name, and
    /// the numbers of tokens of context and answer.
    type Meaning = (String, Option<String>, String, [i64; 2]);

    fn meaning(client: Client, value: &Value) -> Meaning {
        let at = |pointer: &str| value.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in {value}"));
        let text = |pointer: &str| at(pointer).as_str().unwrap().to_owned();
        let counts = |names: [&str; 2]| names.map(|name| at(name).as_i64().unwrap());
        match client {
            Client::Codex => {
                let provider = format!("/model_providers/{}", text("/model_provider"));
                let context = at("/model_context_window").as_i64().unwrap();
                assert!(at(&format!("{provider}/stream_idle_timeout_ms")).is_i64());
                // The name of the variable that has the key; there is none for the length of answers.
                let key = at(&provider).get("env_key").map(|key| key.as_str().unwrap().to_owned());
                (text(&format!("{provider}/base_url")), key, text("/model"), [context, context / 4])
            }
            Client::Claude => {
                // Variables of an environment: numbers are texts. The address goes without the version.
                let counts = ["/env/CLAUDE_CODE_MAX_CONTEXT_TOKENS", "/env/CLAUDE_CODE_MAX_OUTPUT_TOKENS"];
                let (base, key) = (text("/env/ANTHROPIC_BASE_URL") + "/v1", text("/env/ANTHROPIC_AUTH_TOKEN"));
                (base, Some(key), text("/env/ANTHROPIC_MODEL"), counts.map(|count| text(count).parse().unwrap()))
            }
            Client::Opencode => {
                let (name, model) = at("/provider/lily/models").as_object().unwrap().iter().next().unwrap();
                assert_eq!(text("/model"), format!("lily/{name}"));
                let counts = ["context", "output"].map(|count| model["limit"][count].as_i64().unwrap());
                let [base, key] = ["baseURL", "apiKey"].map(|name| text(&format!("/provider/lily/options/{name}")));
                (base, Some(key), name.clone(), counts)
            }
            Client::Qwen => {
                const MODEL: &str = "/modelProviders/openai/0";
                let lengths = ["contextWindowSize", "samplingParams/max_tokens"];
                let lengths = lengths.map(|name| format!("{MODEL}/generationConfig/{name}"));
                let key = text(&format!("/env/{}", text(&format!("{MODEL}/envKey"))));
                assert_eq!(text("/model/name"), text(&format!("{MODEL}/id")));
                let counts = counts(lengths.each_ref().map(String::as_str));
                (text(&format!("{MODEL}/baseUrl")), Some(key), text("/model/name"), counts)
            }
            Client::Zed => {
                let lily = &at("/language_models/openai_compatible/lily");
                let model = &lily["available_models"][0];
                let counts = ["max_tokens", "max_output_tokens"].map(|name| model[name].as_i64().unwrap());
                let [base, name] = [&lily["api_url"], &model["name"]].map(|text| text.as_str().unwrap().to_owned());
                (base, None, name, counts)
            }
            Client::Continue => {
                assert_eq!(at("/models/0/roles"), &json!(["chat", "edit", "apply"]));
                let options = "/models/0/defaultCompletionOptions";
                let lengths = ["contextLength", "maxTokens"].map(|name| format!("{options}/{name}"));
                let counts = counts(lengths.each_ref().map(String::as_str));
                (text("/models/0/apiBase"), Some(text("/models/0/apiKey")), text("/models/0/model"), counts)
            }
            Client::Openwebui | Client::Xcode => panic!("{client:?} reads no file"),
        }
    }

    /// What a shell passes to `docker`.
    fn shell(text: &str) -> Vec<String> {
        let script = format!("docker() {{ printf '%s\\n' \"$@\"; }}\n{text}");
        let output = std::process::Command::new("sh").args(["-eu", "-c", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Every program's settings, read in their format, say where the server is and what it serves, whatever the model is called.
    #[test]
    fn settings_are_read_in_their_format() {
        for (model, asks) in [("lily-nano", false), ("no: \"\\t\u{e4}\" # {key}\t1", true)] {
            let server =
                Address { host: "[::1]".into(), port: 81, model: model.into(), context_tokens: 4096, key: asks };
            let key = if asks { "YOUR_KEY" } else { NO_KEY };
            for &client in Client::value_variants() {
                let config = client.config(&server);
                for place in [BASE, CONTEXT, OUTPUT, "{codex key}", "{port}", "{docker}"] {
                    assert!(!config.contains(place), "{place} in {config}");
                }
                let key = match client {
                    Client::Codex => asks.then_some("LILY_API_KEY"),
                    Client::Zed => None,
                    Client::Openwebui => {
                        let words = shell(&config);
                        let key = format!("OPENAI_API_KEY={key}");
                        for word in ["OPENAI_API_BASE_URL=http://host.docker.internal:81/v1", key.as_str()] {
                            assert!(words.iter().any(|found| found == word), "{word} in {words:?}");
                        }
                        assert_eq!(words.last().map(String::as_str), Some("ghcr.io/open-webui/open-webui:main"));
                        continue;
                    }
                    Client::Xcode => {
                        assert_eq!(config, "Port: 81\nDescription: lily\n");
                        continue;
                    }
                    _ => Some(key),
                };
                let expected =
                    ("http://[::1]:81/v1".to_owned(), key.map(str::to_owned), model.to_owned(), [4096, 1024]);
                let read = read(client.settings().place, &config);
                assert_eq!(meaning(client, &read), expected, "{client:?}");
            }
        }
    }
}
