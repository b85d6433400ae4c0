//! Text to token ids and back, for the byte-level BPE tokenizers of the family (`tokenizer.json`).
//!
//! [`Tokenizer`] encodes through the `tokenizers` crate and decodes by its own table of each token's bytes, so that
//! streaming ([`crate::detokenizer`]), whole decoding and the bytes of log-probabilities agree. Nothing is added to a
//! text that was not in it: a beginning or end of sequence is the template's business.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;
use tokenizers::{DecoderWrapper, Model, ModelWrapper, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};

use crate::detokenizer::Detokenizer;

/// A tokenizer that cannot be used, or a text that it cannot encode.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; a checkpoint needs its tokenizer.json beside the weights")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The content is not a tokenizer in Hugging Face's JSON form.
    #[error("tokenizer.json is not a Hugging Face tokenizer: {reason}; download the file again")]
    Parse {
        /// What the parser said.
        reason: String,
    },
    /// A tokenizer of another kind than the family's.
    #[error("tokenizer.json has {part} {found}, expected {expected}: lily runs byte-level BPE tokenizers only")]
    Kind {
        /// "model" or "decoder".
        part: &'static str,
        /// What the file has.
        found: String,
        /// What lily needs.
        expected: &'static str,
    },
    /// A token that the caller cannot do without.
    #[error(
        "tokenizer.json has no token {content:?}, which this model's chat format needs; use the checkpoint's own tokenizer.json"
    )]
    MissingToken {
        /// Text of the token.
        content: String,
    },
    /// The encoder failed on a text.
    #[error("cannot encode a text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the encoder said.
        reason: String,
    },
}

/// What the texts of added tokens (`<|im_end|>`, `<think>`, ...) mean inside a text that is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTokens {
    /// They become these tokens: for text that a template rendered.
    Recognise,
    /// They are ordinary characters: for text from a user that must not be able to forge a turn.
    AsText,
}

/// The exact bytes of every token, in one block.
#[derive(Debug)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// Where token `id` ends; it starts where the one before it ends.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenTable {
    /// Bytes of token `id`; none for an id without text.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

/// A loaded tokenizer. Cheap to share behind an `Arc`; encoding takes `&self`.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    table: Arc<TokenTable>,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// The file is missing, is not a tokenizer, or is one of another kind.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.display().to_string(), source })?;
        Self::from_bytes(&bytes)
    }

    /// Loads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// The content is not a tokenizer, or is one of another kind.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| TokenizerError::Parse { reason: error.to_string() })?;
        if !matches!(inner.get_model(), ModelWrapper::BPE(_)) {
            let found = variant_name(inner.get_model());
            return Err(TokenizerError::Kind { part: "model", found, expected: "BPE" });
        }
        if !matches!(inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            let found = inner.get_decoder().map_or("none".to_owned(), variant_name);
            return Err(TokenizerError::Kind { part: "decoder", found, expected: "ByteLevel" });
        }
        // Both would change the ids of a text behind the caller's back.
        inner.with_truncation(None).map_err(|error| TokenizerError::Parse { reason: error.to_string() })?;
        inner.with_padding(None);
        let table = Arc::new(token_table(&inner));
        Ok(Self { inner, table })
    }

    /// Token ids of `text`, and of nothing else.
    ///
    /// # Errors
    /// The encoder fails, which a byte-level tokenizer does not do on valid text.
    pub fn encode(&self, text: &str, control: ControlTokens) -> Result<Vec<u32>, TokenizerError> {
        let encoding = match control {
            ControlTokens::Recognise => self.inner.encode_fast(text, false),
            ControlTokens::AsText => self.encode_plain(text),
        };
        let encoding =
            encoding.map_err(|error| TokenizerError::Encode { bytes: text.len(), reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The encoder's own steps, without its search for added tokens.
    fn encode_plain(&self, text: &str) -> tokenizers::Result<tokenizers::Encoding> {
        let mut pieces = PreTokenizedString::from(text);
        if let Some(normalizer) = self.inner.get_normalizer() {
            pieces.normalize(|piece| normalizer.normalize(piece))?;
        }
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.inner.get_model().tokenize(piece.get()))?;
        pieces.into_encoding(None, 0, OffsetType::None)
    }

    /// Text of `ids`: their bytes joined, each invalid UTF-8 sequence as one U+FFFD. Ids without text add nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.table.bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A streaming decoder. With `SpecialTokens::Skip`, tokens flagged special add nothing.
    pub fn detokenizer(&self, special: SpecialTokens) -> Detokenizer {
        Detokenizer::new(self.table.clone(), special)
    }

    /// The exact bytes of a token; none for an id beyond the vocabulary or without text.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// The token as the vocabulary spells it (byte-level letters, added tokens as their text).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Id of the token that the vocabulary spells `content`, such as `<|im_end|>`.
    pub fn token_id(&self, content: &str) -> Option<u32> {
        self.inner.token_to_id(content)
    }

    /// [`Self::token_id`] for a token that must exist.
    ///
    /// # Errors
    /// It does not.
    pub fn require(&self, content: &str) -> Result<u32, TokenizerError> {
        self.token_id(content).ok_or_else(|| TokenizerError::MissingToken { content: content.to_owned() })
    }

    /// Whether the token is flagged special: a marker of the chat format rather than text of an answer.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// One more than the highest id with text. A model's own vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.table.ends.len()
    }
}

/// What a streaming decoder does with tokens flagged special.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are text like any other.
    Show,
    /// They add nothing.
    Skip,
}

/// The name of an enum's variant, from its debug form.
fn variant_name(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}

/// The bytes of every token, from the vocabulary's spelling.
fn token_table(inner: &tokenizers::Tokenizer) -> TokenTable {
    let byte_of = byte_of_letter();
    let added = inner.get_added_tokens_decoder();
    let mut spelled: Vec<(u32, String)> = inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
    spelled.sort_unstable_by_key(|(id, _)| *id);
    let mut table = TokenTable { bytes: Vec::new(), ends: Vec::new(), special: Vec::new() };
    for (id, token) in spelled {
        // Ids that are left out have no text.
        table.ends.resize(id as usize, table.bytes.len() as u32);
        table.special.resize(id as usize, false);
        let added = added.get(&id);
        if added.is_some() || !token.chars().all(|c| byte_of.get(c as usize).is_some_and(Option::is_some)) {
            table.bytes.extend_from_slice(token.as_bytes());
        } else {
            table.bytes.extend(token.chars().filter_map(|c| byte_of[c as usize]));
        }
        table.ends.push(table.bytes.len() as u32);
        table.special.push(added.is_some_and(|t| t.special));
    }
    table
}

/// The alphabet of byte-level BPE, read backwards: visible Latin-1 characters stand for themselves, the other bytes are
/// numbered from U+0100 on.
fn byte_of_letter() -> [Option<u8>; 512] {
    let mut byte_of = [None; 512];
    let mut next = 256;
    for byte in 0..=255u8 {
        let visible = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let letter = if visible {
            usize::from(byte)
        } else {
            next += 1;
            next - 1
        };
        byte_of[letter] = Some(byte);
    }
    byte_of
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// First of the 256 one-byte tokens of [`tiny`].
    pub(crate) const BYTES: u32 = 0;

    fn letters() -> Vec<String> {
        let mut letters = vec![String::new(); 256];
        for (letter, byte) in byte_of_letter().iter().enumerate() {
            if let Some(byte) = byte {
                letters[usize::from(*byte)] = char::from_u32(letter as u32).unwrap().to_string();
            }
        }
        letters
    }

    /// All bytes, two merges, three added tokens.
    fn tiny_json() -> Value {
        let mut vocab = serde_json::Map::new();
        for (id, letter) in letters().into_iter().enumerate() {
            vocab.insert(letter, json!(id));
        }
        vocab.insert("th".into(), json!(256));
        vocab.insert("\u{120}th".into(), json!(257));
        let added = |id: u32, content: &str, special: bool| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": special})
        };
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [added(258, "<|im_start|>", true), added(259, "<|im_end|>", true), added(260, "<think>", false)],
            "normalizer": {"type": "NFC"}, "pre_tokenizer": byte_level, "post_processor": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                      "merges": ["t h", "\u{120} th"]}
        })
    }

    pub(crate) fn tiny() -> Tokenizer {
        Tokenizer::from_bytes(tiny_json().to_string().as_bytes()).unwrap()
    }

    #[test]
    fn knows_the_bytes_of_every_token() {
        let tokenizer = tiny();
        for byte in 0..=255u8 {
            assert_eq!(tokenizer.token_bytes(BYTES + u32::from(byte)), [byte]);
        }
        assert_eq!(tokenizer.token_bytes(257), b" th");
        assert_eq!(tokenizer.token_bytes(259), b"<|im_end|>");
        assert_eq!(tokenizer.token_bytes(261), b"");
        assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
        assert_eq!(tokenizer.vocab_size(), 261);
        assert_eq!(tokenizer.id_to_token(257).unwrap(), "\u{120}th");
        assert_eq!(tokenizer.id_to_token(261), None);
    }

    #[test]
    fn finds_control_tokens_by_content() {
        let tokenizer = tiny();
        assert_eq!(tokenizer.require("<|im_start|>").unwrap(), 258);
        assert!(tokenizer.is_special(258) && tokenizer.is_special(259));
        assert!(!tokenizer.is_special(260) && !tokenizer.is_special(0) && !tokenizer.is_special(9999));
        let error = tokenizer.require("<|nope|>").unwrap_err().to_string();
        assert!(error.contains(r#"no token "<|nope|>""#), "{error}");
    }

    #[test]
    fn control_tokens_are_recognised_only_on_request() {
        let tokenizer = tiny();
        let text = "a<|im_end|> th<think>";
        assert_eq!(tokenizer.encode(text, ControlTokens::Recognise).unwrap(), [97, 259, 257, 260]);
        let plain = tokenizer.encode(text, ControlTokens::AsText).unwrap();
        assert!(plain.iter().all(|&id| id < 258), "{plain:?}");
        assert_eq!(tokenizer.decode(&plain), text);
        // Elsewhere the two agree, normalisation included.
        for text in ["", " the thing", "e\u{301}t\u{e9} \u{1F389}\n\n", "\0\u{7f}"] {
            let ids = tokenizer.encode(text, ControlTokens::AsText).unwrap();
            assert_eq!(ids, tokenizer.encode(text, ControlTokens::Recognise).unwrap());
        }
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let check = |json: String, expect: &str| {
            let error = Tokenizer::from_bytes(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("{".into(), "not a Hugging Face tokenizer");
        check("{}".into(), "not a Hugging Face tokenizer");
        let mut json = tiny_json();
        json["decoder"] = Value::Null;
        check(json.to_string(), "has decoder none, expected ByteLevel");
        json["decoder"] = json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true});
        check(json.to_string(), "has decoder Metaspace, expected ByteLevel");
        json["model"] = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
        check(json.to_string(), "has model WordLevel, expected BPE");
        let error = Tokenizer::from_file(Path::new("no/such/tokenizer.json")).unwrap_err().to_string();
        assert!(error.contains("no/such/tokenizer.json"), "{error}");
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_ignored() {
        let mut json = tiny_json();
        json["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = json!({"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null,
                                 "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
        let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
        assert_eq!(tokenizer.encode("abcd", ControlTokens::Recognise).unwrap(), [97, 98, 99, 100]);
    }
}
