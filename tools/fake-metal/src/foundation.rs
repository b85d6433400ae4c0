//! Foundation: strings, arrays, URLs and errors, as far as the backend uses them.

use crate::runtime::{self, Body as Any, Id, Imp, Sel, initialise, objc_release, objc_retain};
use std::ffi::{CString, c_char, c_void};

/// A Foundation object.
pub enum Body {
    String(CString),
    Array(Array),
    Url(String),
    Error { domain: &'static str, code: isize, text: String },
}

/// Objects that an array owns.
pub struct Array(Vec<usize>);

impl Drop for Array {
    fn drop(&mut self) {
        self.0.iter().for_each(|id| objc_release(*id as Id));
    }
}

/// An array of objects that it takes over.
pub fn array(objects: Vec<Id>) -> Any {
    Any::Foundation(Body::Array(Array(objects.into_iter().map(|id| id as usize).collect())))
}

/// A string.
pub fn string(text: &str) -> Any {
    Any::Foundation(Body::String(CString::new(text).expect("a text without zero bytes")))
}

/// Stores an error where a method's caller asked for it.
pub fn fail(place: *mut Id, domain: &'static str, code: isize, text: String) {
    if !place.is_null() {
        let error = runtime::autoreleased(error(domain, code, text));
        // SAFETY: the caller of a method with an error parameter passes a place for it, or null.
        unsafe { *place = error };
    }
}

/// An error.
pub fn error(domain: &'static str, code: isize, text: String) -> Any {
    Any::Foundation(Body::Error { domain, code, text })
}

/// The text of a string.
pub fn text(id: Id) -> String {
    match runtime::body(id) {
        Any::Foundation(Body::String(text)) => text.to_string_lossy().into_owned(),
        Any::Foundation(Body::Url(path)) => path.clone(),
        _ => panic!("expected a string"),
    }
}

/// Initialisers of allocated objects.
pub fn init(selector: &str) -> Option<Imp> {
    match selector {
        "initWithBytes:length:encoding:" => Some(string_init as Imp),
        "initWithObjects:count:" => Some(array_init as Imp),
        _ => None,
    }
}

/// Methods.
pub fn method(body: &Body, selector: &str) -> Option<Imp> {
    Some(match (body, selector) {
        (Body::String(_), "UTF8String") => string_utf8 as Imp,
        (Body::String(_), "lengthOfBytesUsingEncoding:") => string_length as Imp,
        (Body::Array(_), "count") => array_count as Imp,
        (Body::Array(_), "getObjects:") => array_all as Imp,
        (Body::Error { .. }, "localizedDescription") => error_description as Imp,
        (Body::Error { .. }, "domain") => error_domain as Imp,
        (Body::Error { .. }, "code") => error_code as Imp,
        _ => return None,
    })
}

extern "C-unwind" fn string_init(this: Id, _: Sel, bytes: *const u8, length: usize, _encoding: usize) -> Id {
    // SAFETY: the caller passes so many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, length) };
    initialise(this, string(std::str::from_utf8(bytes).expect("UTF-8")))
}

extern "C-unwind" fn array_init(this: Id, _: Sel, objects: *const Id, count: usize) -> Id {
    // SAFETY: the caller passes so many objects.
    let objects = unsafe { std::slice::from_raw_parts(objects, count) };
    initialise(this, array(objects.iter().map(|id| objc_retain(*id)).collect()))
}

pub extern "C-unwind" fn url_with_path(_: *const c_void, _: Sel, path: Id) -> Id {
    runtime::autoreleased(Any::Foundation(Body::Url(text(path))))
}

extern "C-unwind" fn string_utf8(this: Id, _: Sel) -> *const c_char {
    match runtime::body(this) {
        Any::Foundation(Body::String(text)) => text.as_ptr(),
        _ => std::ptr::null(),
    }
}

extern "C-unwind" fn string_length(this: Id, _: Sel, _encoding: usize) -> usize {
    text(this).len()
}

fn objects(this: Id) -> &'static [usize] {
    match runtime::body(this) {
        Any::Foundation(Body::Array(Array(objects))) => objects,
        _ => panic!("expected an array"),
    }
}

extern "C-unwind" fn array_count(this: Id, _: Sel) -> usize {
    objects(this).len()
}

extern "C-unwind" fn array_all(this: Id, _: Sel, place: *mut Id) {
    for (i, id) in objects(this).iter().enumerate() {
        // SAFETY: the caller has room for as many objects as `count` says.
        unsafe { *place.add(i) = *id as Id };
    }
}

fn error_parts(this: Id) -> (&'static str, isize, &'static str) {
    match runtime::body(this) {
        Any::Foundation(Body::Error { domain, code, text }) => (domain, *code, text),
        _ => panic!("expected an error"),
    }
}

extern "C-unwind" fn error_description(this: Id, _: Sel) -> Id {
    runtime::autoreleased(string(error_parts(this).2))
}

extern "C-unwind" fn error_domain(this: Id, _: Sel) -> Id {
    runtime::autoreleased(string(error_parts(this).0))
}

extern "C-unwind" fn error_code(this: Id, _: Sel) -> isize {
    error_parts(this).1
}
