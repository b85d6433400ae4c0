//! The routes, by subject.

pub(crate) mod generate;
pub(crate) mod health;
pub(crate) mod models;
pub(crate) mod openapi;
pub(crate) mod page;
pub(crate) mod text;
