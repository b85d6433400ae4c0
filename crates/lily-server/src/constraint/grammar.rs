//! Grammars over the model's tokens, through llguidance.

use super::calls;
use lily_api::error::ApiError;
use lily_api::request::{GrammarSyntax, Input, Prefill, Request, ResponseFormat, Tool, ToolChoice};
use lily_engine::prompt::Prompter;
use lily_engine::tokenizer::ControlTokens;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory, regex_to_lark};
use serde_json::{Value, json};
use std::sync::Arc;

/// White space inside JSON: enough for any layout that people use, and an end to what a model in a loop can write.
const JSON_SPACE: &str = r"[ ]{1,8}|\r?\n[ \t]{0,64}";
/// The blank line between the reasoning and the answer.
const LEAD: &str = r"LEAD: /\n{1,2}/";

/// The tokenizer as llguidance sees it.
struct Vocabulary {
    trie: TokTrie,
    prompter: Arc<Prompter>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let encode = |text| self.prompter.tokenizer().encode(text, ControlTokens::Recognise).ok();
        std::str::from_utf8(bytes).ok().and_then(encode).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }
}

/// Compiles grammars for one model.
pub(crate) struct Grammars {
    factory: ParserFactory,
    prompter: Arc<Prompter>,
}

/// What binds an answer.
pub(crate) enum Form {
    /// The whole answer follows one of these grammars.
    Whole {
        /// Those that what was written so far follows.
        alternatives: Vec<Matcher>,
        /// One of them is of tool calls, so a call may end the reasoning.
        calls: bool,
    },
    /// What comes behind the opening tag of a tool call follows a grammar; other text is free.
    Calls(Box<Matcher>),
}

impl Grammars {
    /// For a model that draws from the first `vocab` tokens. Takes some tenths of a second for a large vocabulary.
    ///
    /// # Errors
    /// If llguidance cannot use the vocabulary.
    pub(crate) fn new(prompter: Arc<Prompter>, vocab: usize) -> Result<Self, String> {
        let tokenizer = prompter.tokenizer();
        let bytes = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            if tokenizer.is_special(id) {
                // Markers of the format are no text, whatever their names spell.
                [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
            } else {
                bytes.to_vec()
            }
        };
        let words: Vec<Vec<u8>> = (0..vocab as u32).map(bytes).collect();
        let ends: Vec<u32> = prompter.stop_ids().iter().copied().filter(|&id| (id as usize) < vocab).collect();
        let end = *ends.first().ok_or("the vocabulary has no token that ends a text")?;
        let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(Vocabulary { trie, prompter: Arc::clone(&prompter) });
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|e| e.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false; // errors would quote the text
        Ok(Self { factory, prompter })
    }

    /// What binds the answer to `request`, if anything does; `thinks` if the answer comes after reasoning.
    ///
    /// # Errors
    /// A grammar or schema that cannot be compiled, or a beginning of the answer that it does not allow.
    pub(crate) fn form(&self, request: &Request, thinks: bool) -> Result<Option<Form>, ApiError> {
        let (choice, tools, several) = offered(request);
        let must_call =
            matches!(choice, ToolChoice::Required | ToolChoice::Named(_) | ToolChoice::Allowed { required: true, .. })
                && !tools.is_empty();
        let answer = answer_grammar(&request.format, thinks).filter(|_| !must_call);
        let mut alternatives = Vec::new();
        // A call may come in place of an answer that has a form.
        if must_call || (answer.is_some() && !tools.is_empty()) {
            alternatives.push(self.matcher(lark(&calls::whole(&tools, several, thinks).map_err(of_tools)?), "tools")?);
        }
        let calls = !alternatives.is_empty();
        if let Some(grammar) = answer {
            alternatives.push(self.matcher(grammar, "response_format")?);
        }
        if !alternatives.is_empty() {
            let alternatives = self.after_prefill(alternatives, request)?;
            return Ok(Some(Form::Whole { alternatives, calls }));
        }
        // Among some of the functions, the name is bound too.
        if !matches!(choice, ToolChoice::Allowed { .. }) && !tools.iter().any(|tool| tool.strict) {
            return Ok(None);
        }
        Ok(Some(Form::Calls(Box::new(self.matcher(lark(&calls::behind_opener(&tools).map_err(of_tools)?), "tools")?))))
    }

    fn matcher(&self, grammar: TopLevelGrammar, field: &str) -> Result<Matcher, ApiError> {
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        // The first mask meets what the compiler put off.
        let broken = match matcher.get_error() {
            Some(error) => Some(error),
            None => matcher.clone().compute_mask_or_eos().err().map(|e| e.to_string()),
        };
        let Some(error) = broken else { return Ok(matcher) };
        Err(unenforceable(field, error.lines().next().unwrap_or_default()))
    }

    /// Those that allow the beginning of the answer that the client gave, behind it.
    fn after_prefill(&self, mut alternatives: Vec<Matcher>, request: &Request) -> Result<Vec<Matcher>, ApiError> {
        let Input::Chat(chat) = &request.input else { return Ok(alternatives) };
        let Some(Prefill::Text { content, .. }) = &chat.prefill else { return Ok(alternatives) };
        let encoded = self.prompter.tokenizer().encode(content, ControlTokens::Recognise);
        let tokens = encoded.map_err(|e| ApiError::field("messages", e.to_string()))?;
        alternatives.retain_mut(|matcher| matcher.try_consume_tokens(&tokens).is_ok_and(|taken| taken == tokens.len()));
        if !alternatives.is_empty() {
            return Ok(alternatives);
        }
        let message = "The answer that the last message begins cannot be continued to what response_format or tool_choice \
                       asks for; leave that message out.";
        Err(ApiError::field("messages", message))
    }
}

fn of_tools(reason: String) -> ApiError {
    unenforceable("tools", &reason)
}

fn unenforceable(field: &str, reason: &str) -> ApiError {
    let message = format!("{field} cannot be enforced: {reason}");
    ApiError { code: Some("invalid_schema"), ..ApiError::field(field, message) }
}

/// What a request says of calls: whether they must come, the functions that may be called, and whether several may be.
fn offered(request: &Request) -> (ToolChoice, Vec<&Tool>, bool) {
    match &request.input {
        Input::Text { .. } => (ToolChoice::None, Vec::new(), false),
        Input::Chat(chat) => match &chat.tool_choice {
            choice @ ToolChoice::Named(_) => (choice.clone(), chat.callable(), false),
            choice => (choice.clone(), chat.callable(), chat.parallel_tool_calls),
        },
    }
}

/// The grammar of an answer of some form; none for text.
fn answer_grammar(format: &ResponseFormat, thinks: bool) -> Option<TopLevelGrammar> {
    let lead = if thinks { format!("start: LEAD? answer\n{LEAD}\n") } else { "start: answer\n".to_owned() };
    let json = |schema: &Value| lark(&format!("{lead}answer: %json {}\n", bounded(schema)));
    Some(match format {
        ResponseFormat::Text => return None,
        ResponseFormat::JsonObject => json(&json!({"type": "object"})),
        ResponseFormat::JsonSchema(schema) => json(schema),
        ResponseFormat::Grammar { syntax: GrammarSyntax::Regex, text } => {
            lark(&format!("{lead}answer: /{}/\n", regex_to_lark(text, "")))
        }
        // A grammar of the client's has its own start, so the blank line before it is a grammar of its own.
        ResponseFormat::Grammar { syntax: GrammarSyntax::Lark, text } if thinks => TopLevelGrammar {
            grammars: vec![
                GrammarWithLexer::from_lark(format!("start: LEAD? @answer\n{LEAD}\n")),
                GrammarWithLexer { name: Some("answer".into()), ..GrammarWithLexer::from_lark(text.clone()) },
            ],
            max_tokens: None,
        },
        ResponseFormat::Grammar { syntax: GrammarSyntax::Lark, text } => lark(text),
    })
}

fn lark(text: &str) -> TopLevelGrammar {
    TopLevelGrammar::from_lark(text.to_owned())
}

/// A schema, with an end to the white space that it allows.
pub(super) fn bounded(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        // `true` and `false` are schemas too.
        other => json!({"allOf": [other]}),
    };
    schema["x-guidance"] = json!({"whitespace_flexible": true, "whitespace_pattern": JSON_SPACE});
    schema
}
