//! The Objective-C runtime: selectors, classes, counted objects, autorelease pools, and the lookup of methods.

use crate::{command, foundation, machine, metal};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{LazyLock, Mutex, OnceLock};

/// A reference to an object or class.
pub type Id = *mut Object;
/// A selector: the address of its name, each name once.
pub type Sel = *const c_char;
/// A method's code.
pub type Imp = *const c_void;

/// A class. An object starts with the address of one, a class with zero.
#[repr(C)]
pub struct Class {
    isa: usize,
    name: &'static CStr,
}

/// An object.
#[repr(C)]
pub struct Object {
    isa: usize,
    count: AtomicUsize,
    body: OnceLock<Body>,
}

/// What an object is.
pub enum Body {
    Foundation(foundation::Body),
    Metal(metal::Body),
    Command(command::Body),
}

macro_rules! classes {
    ($($symbol:ident $name:literal),* $(,)?) => {
        $(#[unsafe(no_mangle)] static $symbol: Class = Class { isa: 0, name: $name };)*

        /// Classes that messages are sent to.
        static CLASSES: &[&Class] = &[$(&$symbol),*];
    };
}

classes! {
    _OBJC_CLASS_NSArray c"NSArray",
    _OBJC_CLASS_NSString c"NSString",
    _OBJC_CLASS_NSURL c"NSURL",
    _OBJC_CLASS_MTLBinaryArchiveDescriptor c"MTLBinaryArchiveDescriptor",
    _OBJC_CLASS_MTLCompileOptions c"MTLCompileOptions",
    _OBJC_CLASS_MTLComputePipelineDescriptor c"MTLComputePipelineDescriptor",
    _OBJC_CLASS_MTLFunctionConstantValues c"MTLFunctionConstantValues",
    _OBJC_CLASS_MTLResidencySetDescriptor c"MTLResidencySetDescriptor",
}

/// The class of objects that have no class to send messages to.
static FAKE: Class = Class { isa: 0, name: c"Fake" };

/// Makes an object, owned by whoever gets it.
pub fn object(body: Body) -> Id {
    machine::live(1);
    let body = OnceLock::from(body);
    Box::into_raw(Box::new(Object { isa: &raw const FAKE as usize, count: AtomicUsize::new(1), body }))
}

/// Makes an object that the innermost pool owns.
pub fn autoreleased(body: Body) -> Id {
    objc_autorelease(object(body))
}

/// What an object is.
pub fn body(id: Id) -> &'static Body {
    // SAFETY: objects come from `object` and live while somebody holds them, which the caller of a method does.
    unsafe { &*id }.body.get().expect("an object that was initialised")
}

/// Gives an allocated object its content.
pub fn initialise(id: Id, body: Body) -> Id {
    // SAFETY: as in `body`.
    assert!(unsafe { &*id }.body.set(body).is_ok(), "an object is initialised once");
    id
}

/// The name of a selector.
fn name(sel: Sel) -> &'static str {
    // SAFETY: selectors are leaked C strings.
    unsafe { CStr::from_ptr(sel) }.to_str().expect("a selector is text")
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: Id, sel: Sel) -> Imp {
    let selector = name(sel);
    // SAFETY: receivers are objects or classes, which both start with a word.
    let isa = unsafe { *(receiver as *const usize) };
    if isa == 0 {
        // SAFETY: a first word of zero is a class.
        let class = unsafe { &*(receiver as *const Class) }.name.to_str().expect("a class has a name");
        return match selector {
            "new" => new as Imp,
            "alloc" => alloc as Imp,
            "fileURLWithPath:" if class == "NSURL" => foundation::url_with_path as Imp,
            _ => panic!("the fake has no +[{class} {selector}]"),
        };
    }
    if selector == "respondsToSelector:" {
        return responds as Imp;
    }
    method(receiver, selector).unwrap_or_else(|| panic!("the fake has no method {selector} for this object"))
}

fn method(receiver: Id, selector: &str) -> Option<Imp> {
    // SAFETY: as in `body`.
    match unsafe { &*receiver }.body.get() {
        None => foundation::init(selector),
        Some(Body::Foundation(body)) => foundation::method(body, selector),
        Some(Body::Metal(body)) => metal::method(body, selector),
        Some(Body::Command(body)) => command::method(body, selector),
    }
}

extern "C-unwind" fn responds(this: Id, _: Sel, sel: Sel) -> bool {
    !machine::lacks(name(sel)) && method(this, name(sel)).is_some()
}

extern "C-unwind" fn new(class: *const Class, _: Sel) -> Id {
    // SAFETY: the receiver of `new` is a class.
    let name = unsafe { &*class }.name.to_str().expect("a class has a name");
    object(Body::Metal(metal::new(name)))
}

extern "C-unwind" fn alloc(_: *const Class, _: Sel) -> Id {
    machine::live(1);
    let object = Object { isa: &raw const FAKE as usize, count: AtomicUsize::new(1), body: OnceLock::new() };
    Box::into_raw(Box::new(object))
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_retain(id: Id) -> Id {
    if !id.is_null() {
        // SAFETY: as in `body`.
        unsafe { &*id }.count.fetch_add(1, SeqCst);
    }
    id
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(id: Id) -> Id {
    objc_retain(id)
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_release(id: Id) {
    if id.is_null() {
        return;
    }
    // SAFETY: as in `body`; the last owner frees the object.
    unsafe {
        if (*id).count.fetch_sub(1, SeqCst) == 1 {
            machine::live(-1);
            drop(Box::from_raw(id));
        }
    }
}

thread_local! {
    /// Objects of the pools of this thread, innermost last.
    static POOLS: RefCell<Vec<Vec<usize>>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autorelease(id: Id) -> Id {
    // Without a pool the object would never be released: kept, and so counted as leaked.
    POOLS.with_borrow_mut(|pools| pools.last_mut().map(|pool| pool.push(id as usize)));
    id
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOLS.with_borrow_mut(|pools| {
        pools.push(Vec::new());
        pools.len() as *mut c_void
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    let objects = POOLS.with_borrow_mut(|pools| {
        assert_eq!(pools.len(), pool as usize, "pools are popped in order");
        pools.pop().unwrap_or_default()
    });
    objects.into_iter().for_each(|id| objc_release(id as Id));
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_registerName(name: *const c_char) -> Sel {
    static NAMES: LazyLock<Mutex<HashMap<CString, usize>>> = LazyLock::new(Default::default);
    // SAFETY: the argument is a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_owned();
    let mut names = NAMES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *names.entry(name.clone()).or_insert_with(|| name.into_raw() as usize) as Sel
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_getName(sel: Sel) -> *const c_char {
    sel
}

#[unsafe(no_mangle)]
extern "C-unwind" fn sel_isEqual(a: Sel, b: Sel) -> bool {
    a == b
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_getClass(name: *const c_char) -> *const Class {
    // SAFETY: the argument is a C string.
    let name = unsafe { CStr::from_ptr(name) };
    CLASSES.iter().find(|class| class.name == name).map_or(null(), |class| &raw const **class)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn object_getClass(_: Id) -> *const Class {
    &raw const FAKE
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_getName(class: *const Class) -> *const c_char {
    // SAFETY: the argument is a class.
    unsafe { &*class }.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn class_isMetaClass(_: *const Class) -> bool {
    false
}
