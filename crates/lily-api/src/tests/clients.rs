//! What clients make of a stream: the rules of the official ones, which fail where those would.

use serde_json::{Map, Value, json};

use crate::{Api, SseEvent};

/// The whole answer as a client of `api` has it after the stream.
pub(super) fn fold(api: Api, events: &[SseEvent]) -> Value {
    match api {
        Api::Chat => chat(&openai(events)),
        Api::Completions => completions(&openai(events)),
        Api::Responses => responses(&named(events)),
        Api::Messages => messages(&named(events)),
    }
}

/// The chunks of a stream that ends with `[DONE]`.
fn openai(events: &[SseEvent]) -> Vec<Value> {
    let data: Vec<&str> = events
        .iter()
        .map(|SseEvent { event, data }| {
            assert_eq!(*event, None);
            data.as_str()
        })
        .collect();
    let (last, chunks) = data.split_last().expect("a stream has events");
    assert_eq!(*last, "[DONE]");
    chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("a chunk is JSON")).collect()
}

/// The events of a stream whose events have names.
fn named(events: &[SseEvent]) -> Vec<Value> {
    let mut values = Vec::new();
    for event in events {
        let SseEvent { event: Some(name), data } = event else { panic!("{event:?} has no name") };
        let value: Value = serde_json::from_str(data).expect("an event is JSON");
        assert_eq!(value["type"], **name);
        values.push(value);
    }
    values
}

fn append(object: &mut Map<String, Value>, name: &str, more: &Value) {
    let entry = object.entry(name).or_insert_with(|| json!(""));
    *entry = json!(entry.as_str().unwrap_or_default().to_owned() + more.as_str().expect("text"));
}

fn extend_logprobs(all: &mut Value, more: &Value) {
    for (name, list) in more.as_object().into_iter().flatten() {
        match (list, &mut all[name]) {
            (Value::Array(list), Value::Array(all)) => all.extend(list.iter().cloned()),
            (list, all) => *all = list.clone(),
        }
    }
}

/// As `ChatCompletionStream` of openai-node and the stream helper of openai-python.
fn chat(chunks: &[Value]) -> Value {
    let first = &chunks[0]["choices"][0]["delta"];
    assert_eq!(first["role"], "assistant", "the first chunk has the role");
    let mut message = Map::new();
    let (mut calls, mut logprobs) = (Vec::<Map<String, Value>>::new(), Value::Null);
    let (mut finish_reason, mut usage, mut timings) = (Value::Null, Value::Null, Value::Null);
    for (number, chunk) in chunks.iter().enumerate() {
        for name in ["id", "created", "model", "system_fingerprint", "object"] {
            assert_eq!(chunk[name], chunks[0][name], "{name} changes");
        }
        // Clients overwrite what they have.
        usage = chunk["usage"].clone();
        timings = chunk["timings"].clone();
        let Some(choice) = chunk["choices"].get(0) else { continue };
        assert_eq!(finish_reason, Value::Null, "a choice after the end");
        finish_reason = choice["finish_reason"].clone();
        extend_logprobs(&mut logprobs, &choice["logprobs"]);
        for (name, value) in choice["delta"].as_object().expect("a delta") {
            match name.as_str() {
                "role" => assert_eq!(number, 0, "the role comes once"),
                "tool_calls" => value.as_array().expect("calls").iter().for_each(|call| add_call(&mut calls, call)),
                name => append(&mut message, name, value),
            }
        }
    }
    if message["content"] == "" && !calls.is_empty() {
        message.insert("content".into(), Value::Null);
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), json!(calls));
    }
    message.extend([("role".into(), json!("assistant")), ("refusal".into(), Value::Null)]);
    let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish_reason});
    let head = |name: &str| chunks[0][name].clone();
    json!({
        "id": head("id"), "object": "chat.completion", "created": head("created"), "model": head("model"),
        "system_fingerprint": head("system_fingerprint"), "choices": [choice], "usage": usage, "timings": timings,
    })
}

fn add_call(calls: &mut Vec<Map<String, Value>>, call: &Value) {
    let index = call["index"].as_u64().expect("an index") as usize;
    if index == calls.len() {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()));
        assert!(call["function"]["name"].as_str().is_some_and(|name| !name.is_empty()));
        assert_eq!(call["function"]["arguments"], "");
        let mut call = call.as_object().expect("a call").clone();
        call.remove("index");
        calls.push(call);
        return;
    }
    assert_eq!(index, calls.len() - 1, "calls come one after another");
    assert_eq!(call.get("id"), None);
    let function = calls[index]["function"].as_object_mut().expect("a function");
    append(function, "arguments", &call["function"]["arguments"]);
}

fn completions(chunks: &[Value]) -> Value {
    let mut whole = chunks[0].clone();
    let (mut text, mut logprobs) = (String::new(), Value::Null);
    for chunk in chunks {
        for name in ["usage", "timings"] {
            whole[name] = chunk[name].clone();
        }
        let Some(choice) = chunk["choices"].get(0) else { continue };
        text += choice["text"].as_str().expect("text");
        extend_logprobs(&mut logprobs, &choice["logprobs"]);
        whole["choices"][0]["finish_reason"] = choice["finish_reason"].clone();
    }
    whole["choices"][0]["text"] = json!(text);
    whole["choices"][0]["logprobs"] = logprobs;
    whole
}

/// As `MessageStream` of anthropic-python accumulates a message.
fn messages(events: &[Value]) -> Value {
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().expect("events")["type"], "message_stop");
    let mut message = events[0]["message"].clone();
    let mut inputs = String::new();
    let mut open = None;
    for event in &events[1..] {
        let index = event["index"].as_u64().map(|index| index as usize);
        match event["type"].as_str().expect("a type") {
            "ping" | "message_stop" => {}
            "content_block_start" => {
                let content = message["content"].as_array_mut().expect("content");
                assert_eq!((index, open), (Some(content.len()), None), "blocks come one after another");
                content.push(event["content_block"].clone());
                (open, inputs) = (index, String::new());
            }
            "content_block_delta" => {
                assert_eq!(index, open);
                let block = message["content"][index.expect("an index")].as_object_mut().expect("a block");
                let delta = &event["delta"];
                match delta["type"].as_str().expect("a type") {
                    "text_delta" => append(block, "text", &delta["text"]),
                    "thinking_delta" => append(block, "thinking", &delta["thinking"]),
                    "signature_delta" => append(block, "signature", &delta["signature"]),
                    "input_json_delta" => inputs += delta["partial_json"].as_str().expect("JSON"),
                    other => panic!("unknown delta {other}"),
                }
            }
            "content_block_stop" => {
                assert_eq!(index, open);
                let block = &mut message["content"][index.expect("an index")];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&inputs).expect("the input is JSON");
                }
                open = None;
            }
            "message_delta" => {
                assert_eq!(open, None);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
                message["timings"] = event["timings"].clone();
            }
            other => panic!("unknown event {other}"),
        }
    }
    message
}

/// As Codex acts on events, and as the SDKs accumulate a response.
fn responses(events: &[Value]) -> Value {
    assert_eq!(events[0]["type"], "response.created");
    let mut items: Vec<Value> = Vec::new();
    let mut open: Option<Value> = None;
    let mut written = String::new();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let kind = event["type"].as_str().expect("a type");
        if kind.starts_with("response.") && event.get("item_id").is_some() {
            assert_eq!(event["item_id"], open.as_ref().expect("an open item")["id"]);
            assert_eq!(event["output_index"], items.len());
        }
        if kind.ends_with(".delta") {
            written += event["delta"].as_str().expect("text");
        }
        match kind {
            "response.output_item.added" => {
                assert_eq!((event["output_index"].as_u64(), &open), (Some(items.len() as u64), &None));
                open = Some(event["item"].clone());
                written.clear();
            }
            "response.output_item.done" => {
                let item = &event["item"];
                let announced = open.take().expect("an open item");
                assert_eq!((&item["id"], &item["type"]), (&announced["id"], &announced["type"]));
                let text =
                    [&item["arguments"], &item["input"], &item["content"][0]["text"], &item["summary"][0]["text"]];
                assert_eq!(text.iter().find_map(|text| text.as_str()), Some(written.as_str()));
                items.push(item.clone());
            }
            "response.completed" | "response.incomplete" => {
                assert_eq!((number, &open), (events.len() - 1, &None));
                assert_eq!(event["response"]["output"], json!(items));
            }
            _ => {}
        }
    }
    events.last().expect("events")["response"].clone()
}
