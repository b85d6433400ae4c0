//! Who may use the server: keys, names, origins; and the ids of requests.

mod common;

use common::{Running, Setup, chat};
use lily_server::ApiKey;

fn with_key() -> Running {
    Setup::with(|o| o.api_key = Some(ApiKey::new("s3cret"))).start()
}

#[test]
fn a_key_opens_every_api() {
    let server = with_key();
    let body = common::with(chat("Hi"), serde_json::json!({"max_tokens": 1})).to_string();
    let ask = |headers: &[(&str, &str)]| {
        server.connect().request("POST", "/v1/chat/completions", headers, Some(body.as_bytes())).status
    };
    assert_eq!(ask(&[]), 401);
    assert_eq!(ask(&[("authorization", "Bearer wrong")]), 401);
    assert_eq!(ask(&[("authorization", "Bearer s3cret")]), 200);
    assert_eq!(ask(&[("x-api-key", "s3cret")]), 200);
    for path in ["/health", "/ready", "/"] {
        assert_ne!(server.get(path).status, 401, "{path}");
    }
    for path in ["/metrics", "/v1/models", "/openapi.json", "/nowhere"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
}

#[test]
fn refusals_have_the_shape_of_the_api() {
    let server = with_key();
    let ask = |path| server.connect().request("POST", path, &[], Some(b"{}"));
    let openai = ask("/v1/chat/completions").json();
    assert_eq!(openai["error"]["type"], "authentication_error");
    assert_eq!(openai["error"]["code"], "invalid_api_key");
    assert!(openai["error"]["message"].is_string() && openai["error"]["param"].is_null());
    let anthropic = ask("/v1/messages?beta=true").json();
    assert_eq!((&anthropic["type"], &anthropic["error"]["type"]), (&"error".into(), &"authentication_error".into()));
    let unauthorized = ask("/v1/responses");
    assert_eq!(unauthorized.header("www-authenticate"), Some("Bearer"));
    assert_eq!(unauthorized.header("x-should-retry"), Some("false"));
}

/// A large body of somebody without a key is not read.
#[test]
fn strangers_are_refused_before_their_body_is_read() {
    let server = with_key();
    let mut connection = server.connect();
    connection.ask("POST", "/v1/chat/completions", &[("content-length", "60000000")], Some(b"{"));
    assert_eq!(connection.head().status, 401);
}

#[test]
fn names_that_a_page_could_rebind_are_refused() {
    let server = Setup::default().start();
    let ask = |host: &str| server.connect().request("GET", "/v1/models", &[("host", host)], None);
    for fine in ["localhost:8080", "127.0.0.1", "[::1]:9"] {
        assert_eq!(ask(fine).status, 200, "{fine}");
    }
    for foreign in ["evil.example", "rebind.evil.example:8080", "localhost.evil.example"] {
        let answer = ask(foreign);
        assert_eq!(
            (answer.status, answer.json()["error"]["code"].as_str()),
            (403, Some("host_not_allowed")),
            "{foreign}"
        );
    }
    // The page itself is not given to such a name either: it would have the origin that passes.
    assert_eq!(server.connect().request("GET", "/", &[("host", "evil.example")], None).status, 403);
    let allowed = Setup::with(|o| o.allowed_hosts = vec!["host.docker.internal".into()]).start();
    let answer = allowed.connect().request("GET", "/v1/models", &[("host", "host.docker.internal:8080")], None);
    assert_eq!(answer.status, 200);
}

#[test]
fn pages_of_other_sites_are_refused_unless_asked_for() {
    let server = Setup::default().start();
    let origin = [("origin", "https://evil.example")];
    let body = chat("Hi").to_string();
    let answer = server.connect().request("POST", "/v1/chat/completions", &origin, Some(body.as_bytes()));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (403, Some("origin_not_allowed")));
    assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("access-control-")), "{answer:?}");
    let own = format!("http://{}", server.address);
    assert_eq!(server.connect().request("GET", "/v1/models", &[("origin", own.as_str())], None).status, 200);

    let open = Setup::with(|o| o.cors_origins = vec!["https://chat.example".into()]).start();
    let asked = [
        ("origin", "https://chat.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let answer = open.connect().request("OPTIONS", "/v1/chat/completions", &asked, None);
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,content-type"));
    let answer = open.connect().request("GET", "/v1/models", &asked[..1], None);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("https://chat.example")));
    let answer = open.connect().request("GET", "/v1/models", &origin, None);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
}

#[test]
fn requests_have_ids() {
    let server = Setup::default().start();
    let given = server.connect().request("GET", "/health", &[("x-request-id", "abc-1")], None);
    assert_eq!(given.header("x-request-id"), Some("abc-1"));
    let [one, other] = [(), ()].map(|()| server.get("/health").header("x-request-id").unwrap().to_owned());
    assert!(one.starts_with("req_") && one != other, "{one} {other}");
    assert!(server.get("/nowhere").header("x-request-id").is_some(), "refusals too");
}
