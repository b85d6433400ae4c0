//! What a server is told at its start: names, keys, limits. Where the values come from is the command line's work.

use lily_api::encode::ReasoningField;
use std::fmt;
use std::time::Duration;
use subtle::ConstantTimeEq;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name of the model that clients ask for.
    pub model_id: String,
    /// Further names that it answers to.
    pub aliases: Vec<String>,
    /// Key that clients must show; `None` lets everybody in.
    pub api_key: Option<ApiKey>,
    /// Origins whose pages may call the server; `*` is any. Without one, only its own page may.
    pub cors_origins: Vec<String>,
    /// Names in `Host` that are accepted besides `localhost` and addresses; what keeps foreign pages from reaching a server
    /// on loopback by a name that resolves to it.
    pub allowed_hosts: Vec<String>,
    /// The name under which reasoning goes to clients of chat completions.
    pub reasoning_field: ReasoningField,
    /// Log where a prompt parted from what the cache held.
    pub explain_cache: bool,
    /// Limits.
    pub limits: Limits,
}

/// What one client may take of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest request body, in bytes.
    pub body_bytes: usize,
    /// Bytes that the bodies of all requests may hold together, from when they come until they are parsed.
    pub bodies_bytes: usize,
    /// Time for the head of a request, and for the next one on an idle connection.
    pub head_time: Duration,
    /// Time for the body of a request.
    pub body_time: Duration,
    /// Time that a client may leave what it is sent unread.
    pub write_time: Duration,
    /// Connections at a time; further ones wait to be accepted.
    pub connections: usize,
    /// Time between signs of life on a stream that has nothing else to say.
    pub heartbeat: Duration,
    /// Time that requests under way are given when the server is told to end.
    pub drain_time: Duration,
}

/// Longest head of a request, in bytes: request line and header fields.
pub(crate) const HEAD_BYTES: usize = 32 * 1024;
/// Header fields of a request.
pub(crate) const HEAD_FIELDS: usize = 100;

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            bodies_bytes: 256 << 20,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(60),
            write_time: Duration::from_secs(60),
            connections: 1024,
            heartbeat: Duration::from_secs(5),
            drain_time: Duration::from_secs(30),
        }
    }
}

impl ServerOptions {
    /// A server for one model, open to this machine only, with the usual limits.
    pub fn new(model_id: impl Into<String>) -> Self {
        Self {
            model_id: model_id.into(),
            aliases: Vec::new(),
            api_key: None,
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            reasoning_field: ReasoningField::default(),
            explain_cache: false,
            limits: Limits::default(),
        }
    }
}

/// A key, never shown and compared in constant time.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key that is spelled `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether `shown` is this key. The time taken tells its length at most.
    pub fn admits(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_admits_itself_and_shows_itself_to_nobody() {
        let key = ApiKey::new("secret");
        assert!(key.admits(b"secret"));
        for other in ["", "secre", "secret ", "Secret", "secreT"] {
            assert!(!key.admits(other.as_bytes()), "{other:?}");
        }
        assert!(!format!("{key:?}").contains("secret"));
    }
}
